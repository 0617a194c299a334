"""For the tests that run vLLM itself: `make test-vllm`, in an environment of its own (see docs/how-to/serve.md).

Without vLLM they are skipped, and the others run. Their engines fit a laptop: SmolLM2-135M in float32 on the CPU.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.d2e_sft.vllm.served import ENVIRONMENT, KEY, serving

if TYPE_CHECKING:
    from openai import OpenAI

for name, value in ENVIRONMENT.items():
    os.environ.setdefault(name, value)


@pytest.fixture(scope="session")
def in_process() -> Any:
    """SmolLM2 under transformers, the reference."""
    import torch

    from d2e_sft.model.loading import load_model
    from d2e_sft.model.storage.folder import BUILTIN

    torch.set_num_threads(min(2, os.cpu_count() or 1))  # vLLM leaves its parent process one
    loaded = load_model(BUILTIN)
    loaded.model.eval()
    return loaded


@pytest.fixture(scope="session")
def prompts(in_process: Any) -> Any:
    """100 pairs of mixed lengths and ratios, not decoded."""
    from tests.d2e_sft.vllm.reference import mixed_pairs

    return mixed_pairs(in_process.tokenizer, 100)


@pytest.fixture(scope="session")
def pairs(in_process: Any, prompts: Any) -> Any:
    """The same with what decoding in process answers."""
    from tests.d2e_sft.vllm.reference import decode_reference

    return decode_reference(in_process.model, prompts)


@pytest.fixture(scope="module")
def llm(request: pytest.FixtureRequest) -> Iterator[Any]:
    """An engine with the options in the module's ENGINE."""
    import gc

    from d2e_sft.model.storage.folder import BUILTIN
    from d2e_sft.vllm.offline import load_llm

    engine = load_llm(BUILTIN, dtype="float32", max_model_len=768, enforce_eager=True, **request.module.ENGINE)
    yield engine
    del engine
    gc.collect()


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The address of a server with 8 rows and room for 12 requests."""
    with serving(sys.executable) as (address, _):
        yield address


@pytest.fixture(scope="session")
def client(server: str) -> OpenAI:
    from openai import OpenAI

    return OpenAI(base_url=f"{server}/v1", api_key=KEY, max_retries=0, timeout=300)
