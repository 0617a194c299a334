"""A model decides by likelihood which spans stay; rows on which it does not use the context go to the rules."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from d2e_sft.data.sample import EventSample, read_samples
from data_builders.refine.likelihood import AnswerScorer, Outcome, refine_by
from data_builders.refine.rules import RefinerOptions, refine
from tests.command import output_of, refusal_of
from tests.tiny import make_sample, save_tiny_model

TEXT = "Rain fell for days, so the river rose. Roads were closed, which nobody liked. Anna, who was tired, slept."


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("D2E_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_tiny_model(tmp_path / "model", seed=2)  # some answers are likelier with the context, some are not


def rows(count: int = 8) -> list[EventSample]:
    """Questions on one text, whose answers are words of its own."""
    answers = ["the river", "nobody", "Anna", "rain", "roads", "days", "slept", "tired"]
    return [
        make_sample(i, context=TEXT, refined_context=None, question=f"Who or what? ({i})", answers=[answers[i % 8]])
        for i in range(count)
    ]


def by_likelihood(model: Path, **changes: float) -> RefinerOptions:
    return RefinerOptions.model_validate({"by": "likelihood", "model": str(model), **changes})


def test_each_context_is_what_the_scores_of_single_spans_say(model: Path) -> None:
    options = by_likelihood(model, margin=0, loss=0.5, least_share=0)
    done = make_sample(20)
    whole = make_sample(21, context="It rained.", refined_context=None)
    refined, counts = refine_by([*rows(), done, whole], options, ())
    assert counts.keys() == {*Outcome} - {Outcome.TOO_LONG}, "the tiny model uses the context in some rows"
    assert sum(counts.values()) == 10
    assert refined[8] == done
    assert refined[9].refined_context == "It rained."
    scorer = AnswerScorer(str(model))
    for before, after in zip(rows(), refined, strict=False):
        without, full, kept = scorer.scores(before, ["", TEXT, after.refined_context or ""])
        if full < without:
            assert after.meta["refiner"] == "rules"
            assert after.refined_context == refine(before, RefinerOptions()).refined_context
        else:
            assert after.meta["refiner"] == "likelihood"
            assert kept >= full - 0.5 - 1e-3
            assert before.answers[0].casefold() in str(after.refined_context).casefold()
            spelled = iter(TEXT.casefold().replace(",", " ").replace(".", " ").split())
            found = str(after.refined_context).casefold().replace(",", " ").replace(".", " ").split()
            assert all(word in spelled for word in found), "words of the context, in order"


def test_at_least_a_share_of_the_words_stays(model: Path) -> None:
    for share in (0.35, 0.9):
        refined, _ = refine_by(rows(), by_likelihood(model, margin=0, loss=1e6, least_share=share), ())
        decided = [row for row in refined if row.meta["refiner"] == "likelihood"]
        words = [len(str(row.refined_context).split()) for row in decided]
        assert words
        assert min(words) >= share * len(TEXT.split())
        assert min(words) < (share + 0.35) * len(TEXT.split())


def test_rows_decided_before_an_interruption_are_kept(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scored, asked = AnswerScorer.scores, list[str]()

    def breaks(scorer: AnswerScorer, sample: EventSample, contexts: list[str]) -> list[float]:
        asked.append(sample.id)
        if len(set(asked)) == 5:
            raise KeyboardInterrupt
        return scored(scorer, sample, contexts)

    options = by_likelihood(model, margin=0)
    with monkeypatch.context() as patch:
        patch.setattr(AnswerScorer, "scores", breaks)
        with pytest.raises(KeyboardInterrupt):
            refine_by(rows(), options, ())
    printed = capsys.readouterr().err
    assert "rows by the likelihood of" in printed
    assert "minutes (timed on 2 rows;" in printed
    assert "and the next run resumes there" in printed
    first = set(asked[:-1]) - {asked[-1]}
    asked.clear()
    with monkeypatch.context() as patch:
        patch.setattr(AnswerScorer, "scores", lambda *given: asked.append(given[1].id) or scored(*given))
        result = refine_by(rows(), options, ())
    assert set(asked) == {row.id for row in rows()} - first
    with monkeypatch.context() as patch:
        patch.setattr("d2e_sft.model.loading.load_model", lambda *_, **__: pytest.fail("loaded"))
        assert refine_by(rows(), options, ()) == result
    monkeypatch.setattr(AnswerScorer, "scores", lambda *given: asked.append("again") or scored(*given))
    refine_by(rows(1), by_likelihood(model, margin=0.1), ())
    assert asked[-1] == "again", "other limits are another question"


def test_a_context_longer_than_the_model_goes_to_the_rules(tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "short", positions=300)
    _, counts = refine_by(rows(3), by_likelihood(model), ())
    assert counts == Counter({Outcome.TOO_LONG: 3})


def test_a_build_reports_how_many_rows_each_way_decided(unchanged_raw: Path, model: Path, tmp_path: Path) -> None:
    arguments = ["data", "build", "--datasets", "ester,cqa,ifqa", "--raw", unchanged_raw, "--out", tmp_path / "built"]
    arguments += ["--refine", "likelihood", "--refine-model", model, "refine.margin=0", "refine.loss=3"]
    estimate = output_of(*arguments, "--estimate")
    assert estimate.startswith("refine: ")
    assert not (tmp_path / "built").exists()
    printed = output_of(*arguments)
    [told] = [line for line in printed.splitlines() if line.startswith("refined train: ")]
    manifest = json.loads((tmp_path / "built/manifest.json").read_text())
    train = read_samples(tmp_path / "built/train.parquet")
    ways = manifest["refining"]["train"]
    assert sum(ways.values()) == len(train)
    assert told == "refined train: " + ", ".join(f"{count:,} {way}" for way, count in ways.items())
    assert ways.get("likelihood", 0) == sum(row.meta["refiner"] == "likelihood" for row in train) > 0
    assert f" {ways['likelihood']} likelihood" in (tmp_path / "built/README.md").read_text()
    assert all("refiner" not in row.meta for row in read_samples(tmp_path / "built/test.parquet"))
    shown = output_of("data", "show", "ifqa", "--raw", unchanged_raw, "--rows", "2", "--split", "train",
                      "refine.by=likelihood", f"refine.model={model}")  # fmt: skip
    assert shown.count("refined   ") == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--refine likelihood", "without a model; name one: --refine-model builtin:smollm2-135m-instruct"),
        ("--refine likelihood --refine-model ./nowhere", "model './nowhere': no such folder"),
        ("--refine-model m", r"refine.model with refine.scorer=overlap; expected .* or --refine likelihood"),
        ("--refine likelihood --refine-model m refine.scorer=embedding", "expected overlap or bm25"),
        ("--refine likelihood --refine-model m refine.unit=sentence", "refine.unit=sentence with --refine likelihood"),
        ("refine.margin=3", "refine.margin without --refine likelihood"),
        ("--refine likelihood --refine-model m refine.least_share=2", "least_share"),
        ("--refine model", "'model' is not one of 'rules', 'likelihood'"),
        (
            "--refine likelihood --refine-model m --judge local --judge-model m",
            r"a judge that refines as well; expected one of them .*--judge-jobs quality",
        ),
        ("--refine rules --judge local --judge-model m", "--refine rules with a judge that refines as well"),
        ("--estimate", "name one, .* or give --refine likelihood"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_read(arguments: str, message: str, tmp_path: Path) -> None:
    refused = refusal_of("data", "build", "--datasets", "ifqa", "--out", tmp_path / "out", *arguments.split())
    assert re.search(message, " ".join(refused.split()))
