"""`d2e eval --decoder` and `--plausibility`: what they decode, what is recorded of them, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from d2e_sft.hub.results import benchmark_results
from eval.compare.runs import load_runs
from eval.pages.report.facts import run_facts
from eval.run.engines import in_process
from tests.command import call, d2e, output_of, refusal_of
from tests.factories import evaluate, evaluation, make_run, prediction, predictions, scores_of


def outputs(run: Path) -> list[str]:
    return [row["output"] for row in predictions(run)]


def test_the_cut_offs_ends_are_plain_and_debiased_decoding(world: Path, tmp_path: Path) -> None:
    asked: dict[str, tuple[object, ...]] = {
        "plain": ("--alpha", 0),
        "strictest": ("--alpha", 2, "--plausibility", 1),
        "loosest": ("--alpha", 2, "--plausibility", 1e-30),
        "debiased": ("--alpha", 2),
    }
    for name, arguments in asked.items():
        assert evaluate(world, tmp_path / name, *arguments) == 0
    said = {name: outputs(tmp_path / name) for name in asked}
    assert said["strictest"] == said["plain"]
    assert said["loosest"] == said["debiased"] != said["plain"]


def test_a_cut_off_is_recorded_where_it_is_given(world: Path, tmp_path: Path) -> None:
    assert evaluate(world, tmp_path / "cut", "--alpha", 0.5, "--plausibility", 0.1) == 0
    assert evaluate(world, tmp_path / "all", "--alpha", 0.5) == 0
    assert scores_of(tmp_path / "cut")["plausibility"] == 0.1
    assert "plausibility" not in scores_of(tmp_path / "all")
    facts = run_facts(load_runs([tmp_path / "cut", tmp_path / "all"]), [None, None])["Evaluation"]
    whole = "debiased with α = 0.5"
    said = next(fact.values for fact in facts if fact.name == "decoded")
    assert said == (f"{whole} and a plausibility cut-off of 0.1", whole)


def test_a_cut_off_that_cuts_nothing_is_said_and_not_recorded(world: Path, tmp_path: Path) -> None:
    warned = call(*evaluation(world, tmp_path, "--plausibility", 0.1))
    assert "warning: --plausibility has no effect where α is 0" in warned.err
    assert "plausibility" not in scores_of(tmp_path)
    assert evaluate(world, tmp_path, "--alpha", 0) == 0, "the same decoding"


@pytest.mark.parametrize(
    ("first", "other", "said"),
    [
        ("--alpha 0.5 --plausibility 0.1", "--alpha 0.5", "--plausibility: 0.1 → none"),
        ("--decoder adacad", "--decoder adacad:floor=0.1", "--decoder: adacad:floor=0 → adacad:floor=0.1"),
    ],
)
def test_results_of_another_decoding_are_not_mixed(
    world: Path, tmp_path: Path, first: str, other: str, said: str
) -> None:
    assert evaluate(world, tmp_path, *first.split()) == 0
    assert said in refusal_of(*evaluation(world, tmp_path, *other.split()))
    assert evaluate(world, tmp_path, *first.replace("adacad", "adacad:floor=0").split()) == 0, "the same"
    assert evaluate(world, tmp_path, "--without-context") == 0


@pytest.mark.parametrize(
    ("how", "facts", "label"),
    [
        ({"plausibility": 0.1}, "debiased with α = 0.5 and a plausibility cut-off of 0.1", "α=0.5, β=0.1)"),
        ({"alpha": None, "decoder": "cad:weight=1"}, "with cad:weight=1", ", decoded with cad:weight=1)"),
    ],
)
def test_tables_and_cards_name_decoder_and_cut_off(
    tmp_path: Path, how: dict[str, Any], facts: str, label: str
) -> None:
    rows = [prediction(n, n < 5).model_copy(update={"dataset": "tracie"}) for n in range(10)]
    run = make_run(tmp_path / "run", rows, **how)
    assert f"decoded {facts}" in benchmark_results(run)[0].facts
    assert label in output_of("table", run, "--layout", "sensitivity")
    assert how.items() <= json.loads(output_of("table", run, "--format", "json"))["rows"][0].items()


def test_decoders_decode_differently_and_cad_as_d2e_does(world: Path, tmp_path: Path) -> None:
    asked: dict[str, tuple[object, ...]] = {
        "none": (), "plain": ("--decoder", "plain"), "d2e": ("--decoder", "d2e:alpha=0.75"),
        "cad": ("--decoder", "cad:weight=3"), "adacad": ("--decoder", "adacad:floor=0.5"),
    }  # fmt: skip
    for name, arguments in asked.items():
        assert evaluate(world, tmp_path / name, *arguments) == 0
    said = {name: outputs(tmp_path / name) for name in asked}
    assert said.pop("none") == said["plain"]
    assert said.pop("cad") == said["d2e"], "α = a/(1 + a)"
    assert len({tuple(answers) for answers in said.values()}) == len(said)
    scores = {name: scores_of(tmp_path / name) for name in asked}
    recorded = {name: (of_run["alpha"], of_run.get("decoder")) for name, of_run in scores.items()}
    assert recorded == {
        "none": (0.0, None), "plain": (0.0, None), "d2e": (0.75, None),
        "cad": (None, "cad:weight=3"), "adacad": (None, "adacad:floor=0.5"),
    }  # fmt: skip


@pytest.mark.parametrize("answer", ["likelihood", "generate"])
def test_several_decoders_in_one_call_give_what_each_gives_alone(
    world: Path, tmp_path: Path, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[str] = []
    load = in_process.load_model
    monkeypatch.setattr(in_process, "load_model", lambda name, **how: loads.append(name) or load(name, **how))
    common = ("eval", world / "model", "--bench", world / "bench", "--answer", answer)
    names = ("plain", "cad:weight=0.5", "d2e:alpha=0.3")
    words = [word for name in names for word in ("--decoder", name)]
    assert d2e(*common, *words, "--out", tmp_path / "run") == 0
    assert len(loads) == 1
    folder = "bench-likelihood" if answer == "likelihood" else "bench"
    for name, run in zip(names, ("run-plain", "run-cad-weight-0.5", "run-d2e-alpha-0.3"), strict=True):
        assert d2e(*common, "--decoder", name, "--out", tmp_path / "alone" / run) == 0
        rows = [predictions(at / run, folder) for at in (tmp_path, tmp_path / "alone")]
        scored = [[option.pop("logprob") for row in of for option in row.get("likelihoods", ())] for of in rows]
        assert scored[0] == pytest.approx(scored[1], abs=1e-4)  # in a row that holds the other view too, sums differ
        assert rows[0] == rows[1]
        together, alone = (scores_of(at / run, folder) for at in (tmp_path, tmp_path / "alone"))
        differs = {key for key in {**together, **alone} if together.get(key) != alone.get(key)}
        assert differs <= {"seconds", "timed", "environment"}
