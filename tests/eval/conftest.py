"""What the tests in this folder share: a tiny model with a benchmark, and the prompts that it decodes."""

from pathlib import Path
from typing import Any

import pytest

from tests.factories import make_world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model and a benchmark with training rows."""
    return make_world(tmp_path_factory.mktemp("world"), seed=3)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The prompts that this process decodes from now on."""
    from eval.run.engines import in_process

    prompts: list[Any] = []
    generate = in_process.generate

    def counting(model: Any, tokenizer: Any, pairs: Any, *rest: Any, **options: Any) -> Any:
        prompts.extend(pairs)
        return generate(model, tokenizer, pairs, *rest, **options)

    monkeypatch.setattr(in_process, "generate", counting)
    return prompts
