"""`d2e eval --bench SYSTEM` and `d2e score SYSTEM` as a user calls them, with a tiny random model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.command import call, refusal_of
from tests.eval.systems.cases import CASES, save_gold
from tests.eval.systems.files import save
from tests.tiny import save_tiny_model

LIKELIHOOD = ("--answer", "likelihood")


class Bench:
    """A system's data and run folder; calls commands and reads what they leave."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder, self.model, self.system = folder, model, ""

    def of(self, system: str) -> Bench:
        """Use this system."""
        self.system, self.data = system, self.folder / "data" / system
        for name in CASES:
            if name.split()[0] == system:
                save_gold(self.folder / "data", name)
        return self

    def evaluate(self, *options: str, status: int = 0) -> str:
        """Run `d2e eval` with options (`NAME=VALUE` for `--set`), and return what it prints."""
        where = ["--bench", self.system, "--data", self.data, "--out", self.folder / "run"]
        where += [] if "likelihood" in options else ["--max-new-tokens", "4"]
        called = call("eval", self.model, *where, *_set(options))
        assert called.status == status, called.err
        return called.out + called.err

    def score(self, *options: str, predictions: Path | None = None) -> tuple[dict[str, Any], str]:
        """Run `d2e score` and return the scores and what it prints to stderr."""
        files = ("--predictions", predictions or self.folder / "run", "--gold", self.data)
        called = call("score", self.system, *files, "--json", "-", *_set(options))
        return json.loads(called.out), called.err

    def refusal(self, *options: str) -> str:
        """Return the error of `d2e score`."""
        files = ("--predictions", self.folder / "run", "--gold", self.data)
        return refusal_of("score", self.system, *files, *_set(options))

    def results(self, variant: str = "") -> Path:
        """Return the folder of results."""
        return self.folder / "run" / "eval" / f"{self.system}{variant}"

    def scores(self, variant: str = "") -> dict[str, Any]:
        """Return the content of `scores.json`."""
        return json.loads((self.results(variant) / "scores.json").read_text(encoding="utf-8"))

    def answers(self, variant: str = "") -> list[dict[str, Any]]:
        """Return the lines of the pass `answers`."""
        return [json.loads(line) for line in (self.results(variant) / "answers.jsonl").read_text().splitlines()]


def _set(options: tuple[str, ...]) -> list[str]:
    return [part for option in options for part in (["--set", option] if "=" in option else [option])]


@pytest.fixture
def bench(tmp_path: Path, model: Path) -> Bench:
    return Bench(tmp_path, model)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A model without a chat template."""
    folder = save_tiny_model(tmp_path / "base", seed=3, positions=16_384)
    (folder / "chat_template.jinja").unlink()
    return folder


@pytest.mark.parametrize(
    ("system", "options", "variant", "files"),
    [
        *(
            ("crepe", (f"prompt={prompt}", "shots=1", "--alpha", "0.5"), f"-prompt={prompt}-shots=1", {"": ""})
            for prompt in ("text", "cot", "code_two_step")
        ),
        ("boxes", (), "", {"answers_by_box.jsonl": "", "predictions.tsv": ""}),
        ("boxes", ("prompt=trained", "--alpha", "0.5"), "-prompt=trained", {"": ""}),
        ("boxes", ("--form", "completion", "demonstrations=none"), "-demonstrations=none-completion", {"": ""}),
        ("boxes", ("states_per_numops=1",), "-states_per_numops=1", {"": ""}),
        ("wiqa", ("--alpha", "0.5"), "", {"wiqa_predictions.jsonl": ""}),
        ("wiqa", ("prompt=trained", "--alpha", "0.5"), "-prompt=trained", {"wiqa_predictions.jsonl": ""}),
        (
            "openpi2",
            ("--alpha", "0.5", "--max-samples", "1"),
            "",
            {f"{task}.json": f"task={task}" for task in ("schemata", "states", "complete")},
        ),
    ],
)
def test_a_run_leaves_predictions_that_score_the_same(
    bench: Bench, system: str, options: tuple[str, ...], variant: str, files: dict[str, str]
) -> None:
    assert bench.of(system).evaluate(*options)
    scores = bench.scores(variant)
    assert (scores["system"], "password" in scores["options"]) == (system, False)
    for name, option in files.items():
        again, told = bench.score(*filter(None, [option]), predictions=bench.results(variant) / name if name else None)
        shared = again.keys() & scores.keys()
        assert len(shared) >= 2
        assert {key: again[key] for key in shared} == {key: scores[key] for key in shared}
        assert "carries other gold" not in told


def test_another_subset_is_refused_and_a_subset_is_scored_by_its_own_procedures(bench: Bench) -> None:
    options = ("prompt=text", "shots=0")
    bench.of("crepe").evaluate(*options, "--max-samples", "1")
    assert bench.scores("-prompt=text-shots=0")["counts"]["procedures"] == 1
    assert "--set missing=leave_out" in bench.refusal()
    assert bench.score("missing=leave_out")[0]["macro_f1"] == bench.scores("-prompt=text-shots=0")["macro_f1"]
    error = bench.evaluate(*options, status=1)
    assert "prompts (--max-samples 1 --seed 0) → " in error
    assert "prompts (all)" in error
    assert "sha256" not in error
    bench.evaluate(*options, "--overwrite")
    bench.evaluate(*options, "--max-samples", "2")  # both procedures are the same prompts as all


def test_yes_and_no_are_scored_by_likelihood(bench: Bench) -> None:
    bench.of("crepe").evaluate("prompt=yes_no", "--alpha", "0.5", *LIKELIHOOD)
    assert bench.scores("-prompt=yes_no-likelihood")["unparsed"]["pairs"] == 0
    rows = bench.answers("-prompt=yes_no-likelihood")
    assert len(rows) == 8
    assert all([option["option"] for option in row["likelihoods"]] == ["yes", "no"] for row in rows)


def test_the_imagined_view_can_be_decoded_alone(bench: Bench) -> None:
    bench.of("crepe").evaluate("prompt=text", "shots=0", "--without-context")
    assert bench.scores("-prompt=text-shots=0-without-context")["without_context"]
    by_event: dict[str, set[str]] = {}
    for row in bench.answers("-prompt=text-shots=0-without-context"):
        by_event.setdefault(row["id"].rpartition("/")[0], set()).add(row["output"])
    assert all(len(outputs) == 1 for outputs in by_event.values()), "without steps an event has one prompt"


@pytest.mark.parametrize(
    ("system", "options"),
    [
        ("boxes", ("prompt=one_box",)),
        ("boxes", ("prompt=trained",)),
        ("crepe", ("prompt=code_nested", "shots=1")),
        ("crepe", ("prompt=chat", "shots=1")),
        ("openpi2", ()),
        ("wiqa", ()),
    ],
)
def test_a_model_without_a_chat_template_continues_texts(
    bench: Bench, base: Path, system: str, options: tuple[str, ...]
) -> None:
    bench.model = base
    options = (*options, "--alpha", "0.5", "--max-samples", "1")
    refused = bench.of(system).evaluate(*options, status=1)
    assert "has no chat template" in refused
    assert "--form completion" in refused
    bench.evaluate(*options, "--form", "completion")
    variant = "".join(f"-{option}" for option in options if "=" in option) + "-completion"
    assert (bench.scores(variant)["form"], bench.scores(variant)["alpha"]) == ("completion", 0.5)
    bench.evaluate(*options, "--form", "completion", "--without-context")


def test_predictions_of_boxes_may_name_their_lines_or_follow_the_gold_file(bench: Bench) -> None:
    texts = ["the cup", "the hat and the pen", "nothing", "nothing", "the pen", "the hat"]

    def scored(rows: list[dict[str, Any]]) -> dict[str, Any]:
        return bench.score(predictions=save(bench.folder / "p.jsonl", rows))[0]

    bench.of("boxes")
    assert scored([{"prediction": text} for text in texts])["state_accuracy"]["mean"] == 1
    some = scored([{"line": 5, "prediction": "the pen"}, {"line": 2, "prediction": "nothing"}])
    assert (some["questions"], some["accuracy"]["mean"]) == (2, 0.5)
    assert (some["states"], some["state_accuracy"]) == (0, None), "a part of a state is no whole one"
    assert scored([{"line": n, "prediction": texts[n - 1]} for n in (1, 2, 3, 4)])["states"] == 1
