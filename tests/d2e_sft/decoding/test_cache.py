"""Keys and values of rows: every way to attend to them gives the same answers."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial

import pytest
import torch

from d2e_sft.decoding import cache, rows
from tests.d2e_sft.decoding.pairs import DECODING, generated, prefixed_case


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_dense_attention_of_rows_gives_what_the_cascade_gives(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, pairs, stops = prefixed_case(kind)
    cascade = generated(model, pairs, DECODING, stop_ids=stops)
    monkeypatch.setattr(cache, "_can_cascade", lambda *_: False)
    assert generated(model, pairs, DECODING, stop_ids=stops) == cascade


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor on CPU needs g++")
@pytest.mark.parametrize(("kind", "backend"), [("llama", "inductor"), ("gemma3", "aot_eager")])
def test_a_compiled_step_over_static_rows_gives_the_same_answers(
    kind: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both kinds are traced without a graph break; kernels are compiled for one only, which takes 20 s."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    rows._compiled_next_states.cache_clear()
    model, pairs, stops = prefixed_case(kind)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = generated(model, pairs, replace(DECODING, compiled=True), stop_ids=stops)
    assert compiled == generated(model, pairs, DECODING, stop_ids=stops)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert not torch._dynamo.utils.counters["graph_break"]
