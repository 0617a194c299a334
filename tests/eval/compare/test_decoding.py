"""Differences of decoding between compared runs are named, and refused with --strict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.command import d2e, output_of, refusal_of
from tests.eval.paper_runs import PAPER
from tests.eval.paper_runs import run as paper_run
from tests.factories import make_run, prediction

PLAIN = {"alpha": 0.0, "max_new_tokens": 16, "dtype": "float32", "prompt_set": f"default, sha256 {'a' * 64}"}
ROWS = [prediction(number, number % 2 == 0) for number in range(6)]


def made(folder: Path, name: str, **fingerprint: Any) -> Path:
    return make_run(folder / name, ROWS, engine="transformers", model="m", fingerprint={**PLAIN, **fingerprint})


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"alpha": 0.5}, "decoding plainly (a), debiased with α = 0.5 (b)"),
        ({"max_new_tokens": 32}, "max_new_tokens 16 (a), 32 (b)"),
        ({"dtype": "bfloat16"}, "dtype float32 (a), bfloat16 (b)"),
        ({"prompt_set": f"default, sha256 {'b' * 64}"}, "prompt_set default, sha256 aaaaaaaa… (a)"),
        ({"form": "completion"}, "form chat (a), completion (b)"),
        ({"alpha": None, "decoder": "cad:weight=1"}, "with cad:weight=1 (b)"),
        ({"demonstrations": "sha256 " + "c" * 64}, "demonstrations none (a), sha256 cccccccc… (b)"),
        ({"model": "sha256:" + "d" * 64}, "weights of m none (a), sha256:dddddddd… (b)"),
    ],
)
def test_a_difference_is_named_and_refused_with_strict(tmp_path: Path, other: dict[str, Any], said: str) -> None:
    runs = [made(tmp_path, "a"), made(tmp_path, "b", **other)]
    assert said in " ".join(output_of("compare", *runs).split())
    error = " ".join(refusal_of("compare", *runs, "--strict").split())
    assert said in error
    assert error.count("error:") == 1
    assert d2e("compare", *runs, "--json", tmp_path / "found.json") == 0
    assert len(json.loads((tmp_path / "found.json").read_text())["decoding"]["differs"]) == 1
    page = tmp_path / "page.html"
    assert said in " ".join(output_of("report", *runs, "--out", page).split())
    assert "Decoded differently" in page.read_text("utf-8")
    assert "--strict" in refusal_of("report", *runs, "--out", page, "--strict")


def test_equal_decoding_is_not_mentioned_and_passes_strict(tmp_path: Path) -> None:
    output = output_of("compare", made(tmp_path, "a"), made(tmp_path, "b"), "--strict")
    assert "ecod" not in output


def test_what_old_results_do_not_record_is_unknown(tmp_path: Path) -> None:
    new, foreign = (paper_run(tmp_path / name, PAPER, fingerprint=PLAIN) for name in ("new", "theirs"))
    (foreign / "eval/piper/predictions.decoding.json").unlink()
    for verb in ("table", "compare"):
        assert "Decoding unknown: theirs." in output_of(verb, new, foreign)
        assert "--strict" in refusal_of(verb, new, foreign, "--strict")


def test_a_paper_table_has_the_same_note(tmp_path: Path) -> None:
    runs = [
        paper_run(tmp_path / name, PAPER, engine="transformers", fingerprint={**PLAIN, "max_new_tokens": tokens})
        for name, tokens in (("a", 16), ("b", 32))
    ]
    assert "Decoded differently: max_new_tokens 16 (a), 32 (b)." in output_of("table", *runs)
    assert "max_new_tokens 16 (a), 32 (b)" in " ".join(refusal_of("table", *runs, "--strict").split())
