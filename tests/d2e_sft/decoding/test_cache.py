"""Keys and values of rows: every way to attend to them gives the same answers."""

from __future__ import annotations

import shutil
from functools import partial
from typing import Any

import pytest
import torch

from d2e_sft.decoding import DecodingConfig, cache, generate_debiased
from tests.d2e_sft.decoding.pairs import (
    NEW_TOKENS,
    prefixed_case,
)


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_dense_attention_of_rows_gives_what_the_cascade_gives(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, originals, imagined, stops = prefixed_case(kind)
    options: dict[str, Any] = {"decoding": DecodingConfig(max_new_tokens=NEW_TOKENS), "stop_ids": stops}
    cascade = generate_debiased(model, originals, imagined, **options)
    monkeypatch.setattr(cache, "_can_cascade", lambda *_: False)
    assert generate_debiased(model, originals, imagined, **options) == cascade


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor on CPU needs g++")
@pytest.mark.parametrize(("kind", "backend"), [("llama", "inductor"), ("gemma3", "aot_eager")])
def test_a_compiled_step_over_static_rows_gives_the_same_answers(
    kind: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Traced without a break for both; kernels are made for one, which takes 20 s. On a GPU it has not been run."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    model, originals, imagined, stops = prefixed_case(kind)
    options: dict[str, Any] = {"decoding": DecodingConfig(max_new_tokens=NEW_TOKENS), "stop_ids": stops}
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = generate_debiased(
        model, originals, imagined, DecodingConfig(max_new_tokens=NEW_TOKENS, compiled=True), stop_ids=stops
    )
    assert compiled == generate_debiased(model, originals, imagined, **options)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert not torch._dynamo.utils.counters["graph_break"]
