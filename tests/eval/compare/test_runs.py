"""Run folders are read together; those that do not fit, are damaged or were decoded differently are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eval.compare.compare import compare_runs
from eval.compare.runs import load_runs, only_subset, reference_first
from tests.command import d2e, output_of, refusal_of
from tests.eval.paper_runs import PAPER
from tests.eval.paper_runs import run as paper_run
from tests.factories import make_run, prediction, story


def scored(folder: Path, name: str = "run", count: int = 1, **changes: Any) -> Path:
    return make_run(folder / name, [prediction(n, True) for n in range(count)], **changes)


def test_the_benchmark_is_the_only_shared_one_or_the_chosen_one(tmp_path: Path) -> None:
    for name, benches in {"a": ["mini", "left"], "b": ["mini", "right"]}.items():
        for bench in benches:
            scored(tmp_path, name, bench=bench)
    assert compare_runs(load_runs([tmp_path / "a", tmp_path / "b"])).bench == "mini"
    assert load_runs([tmp_path / "a"], "left")[0].scores.bench.name == "left"


def test_runs_are_named_by_enough_of_their_paths_and_the_reference_by_label_or_path(tmp_path: Path) -> None:
    names = ("x/seed/run", "y/seed/run", "y/other", "d2e/checkpoint-30", "d2e/checkpoint-60")
    runs = load_runs([make_run(tmp_path / name, [prediction(1, True)]) for name in names])
    labels = [run.label for run in runs]
    assert labels == ["x/seed/run", "y/seed/run", "other", "d2e/checkpoint-30", "d2e/checkpoint-60"]
    assert [run.home.name for run in runs] == ["run", "run", "other", "d2e", "d2e"], "where recipe and data are"
    for name in ("other", str(tmp_path / "y/other")):
        assert [run.label for run in reference_first(runs, name)] == [labels[2], *labels[:2], *labels[3:]]


def test_one_subset_s_samples_can_be_compared_alone(tmp_path: Path) -> None:
    rows = [story(1, "conflict", "garage"), story(2, "conflict", "kitchen"), story(3, "aligned", "x")]
    rows.append(prediction(4, True))
    (run,) = only_subset(load_runs([make_run(tmp_path / "run", rows)]), "conflict")
    assert [p.id for p in run.predictions.values()] == ["s1", "s2"]
    assert compare_runs([run]).groups[0].score("run", "exact_match").mean == 0.5


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
