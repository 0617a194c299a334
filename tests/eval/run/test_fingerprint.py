"""Which outputs on disk are refused, and the messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.util.errors import UserError
from eval.run.fingerprint import check_fingerprint

BEFORE = {"model": "sha256:1", "view": "original", "alpha": 0.5, "max_new_tokens": 64, "subset": None}
FILE = Path("predictions.jsonl")


def test_everything_that_differs_is_named_by_its_option() -> None:
    now = {**BEFORE, "alpha": 0.7, "subset": "3 a group, seed 0", "prompt_set": "x" * 80}
    with pytest.raises(UserError) as refused:
        check_fingerprint(BEFORE, now, FILE)
    assert refused.value.message.splitlines() == [
        "predictions.jsonl: was decoded by another model or with other options",
        "  --alpha: 0.5 → 0.7",
        "  the subset (--max-samples): none → 3 a group, seed 0",
        f"  the prompt set: none → {'x' * 60}…",
    ]
    check_fingerprint(BEFORE, dict(BEFORE), FILE)


def test_the_pass_without_context_may_differ_in_view_and_alpha_but_not_in_the_model() -> None:
    without = {**BEFORE, "view": "imagined", "alpha": 0.0, "cut_to": 400}
    check_fingerprint(BEFORE, without, FILE, companion=True)
    with pytest.raises(UserError, match="the model: sha256:1 → sha256:2"):
        check_fingerprint(BEFORE, {**without, "model": "sha256:2"}, FILE, companion=True)


def test_another_decoder_is_said_by_the_names_of_the_options() -> None:
    before, now = ({**BEFORE, **DecodingConfig(decoder=text).record()} for text in ("d2e:alpha=0.7", "adacad"))
    with pytest.raises(UserError) as refused:
        check_fingerprint(before, now, FILE)
    assert refused.value.message.splitlines()[1:] == ["  --alpha: 0.7 → none", "  --decoder: none → adacad:floor=0"]
    check_fingerprint(before, now, FILE, companion=True)
