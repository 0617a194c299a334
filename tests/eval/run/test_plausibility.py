"""`d2e eval --plausibility`: its ends are plain and debiased decoding; its results are not mixed with others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from d2e_sft.hub.results import benchmark_results
from eval.compare.runs import load_runs
from eval.pages.report.facts import run_facts
from tests.command import d2e
from tests.eval.benches import predictions, scores_of
from tests.eval.fake_runs import make_run, prediction


def evaluate(world: Path, run: Path, *arguments: object) -> int:
    """Without a batch size, which an endpoint has no use for."""
    return d2e("eval", world / "model", "--bench", world / "bench", "--out", run, "--max-new-tokens", 6, *arguments)


def outputs(run: Path) -> list[str]:
    return [row["output"] for row in predictions(run)]


def test_its_ends_are_plain_and_debiased_decoding(world: Path, tmp_path: Path) -> None:
    asked: dict[str, tuple[object, ...]] = {
        "plain": ("--alpha", 0),
        "strictest": ("--alpha", 2, "--plausibility", 1),
        "between": ("--alpha", 2, "--plausibility", 0.99),
        "loosest": ("--alpha", 2, "--plausibility", 1e-30),
        "debiased": ("--alpha", 2),
    }
    for name, arguments in asked.items():
        assert evaluate(world, tmp_path / name, *arguments) == 0
    said = {name: outputs(tmp_path / name) for name in asked}
    assert said["strictest"] == said["plain"]
    assert said["loosest"] == said["debiased"] != said["plain"]
    assert said["between"] not in (said["plain"], said["debiased"])


def test_it_is_recorded_where_it_is_given(world: Path, tmp_path: Path) -> None:
    assert evaluate(world, tmp_path / "cut", "--alpha", 0.5, "--plausibility", 0.1) == 0
    assert evaluate(world, tmp_path / "all", "--alpha", 0.5) == 0
    assert scores_of(tmp_path / "cut")["plausibility"] == 0.1
    assert "plausibility" not in scores_of(tmp_path / "all")
    facts = run_facts(load_runs([tmp_path / "cut", tmp_path / "all"]), [None, None])["Evaluation"]
    assert next(fact.values for fact in facts if fact.name == "plausibility cut-off") == ("0.1", "0.0")


def test_results_with_another_cut_off_are_not_mixed(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(world, tmp_path, "--alpha", 0.5, "--plausibility", 0.1) == 0
    assert evaluate(world, tmp_path, "--alpha", 0.5) == 1
    assert "--plausibility: 0.1 → none" in capsys.readouterr().err
    assert evaluate(world, tmp_path, "--alpha", 0.5, "--plausibility", 0.1, "--without-context") == 0


def test_a_cut_off_that_cuts_nothing_is_said_and_not_recorded(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(world, tmp_path, "--plausibility", 0.1) == 0
    assert "warning: --plausibility has no effect where α is 0" in capsys.readouterr().err
    assert "plausibility" not in scores_of(tmp_path)
    assert evaluate(world, tmp_path, "--alpha", 0) == 0, "the same decoding"


def test_one_out_of_range_or_for_an_endpoint_is_refused(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        evaluate(world, tmp_path, "--engine", "openai", "--base-url", "http://127.0.0.1:9", "--plausibility", 0.1) == 1
    )
    assert "--plausibility 0.1 with --engine openai: an endpoint decodes plainly" in capsys.readouterr().err
    assert evaluate(world, tmp_path, "--alpha", 0.5, "--plausibility", 1.5) == 2
    assert "0<=x<=1" in capsys.readouterr().err


def test_tables_and_cards_say_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [prediction(n, n < 5).model_copy(update={"dataset": "tracie"}) for n in range(10)]
    run = make_run(tmp_path / "cut", rows, plausibility=0.1)
    assert "decoded debiased with α = 0.5 and a plausibility cut-off of 0.1" in benchmark_results(run)[0].facts
    assert d2e("table", run, "--layout", "sensitivity") == 0
    assert "α=0.5, β=0.1)" in capsys.readouterr().out
    assert d2e("table", run, "--format", "json") == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["plausibility"] == 0.1
