"""`d2e data tag`: own rows get a model's habits, and whoever uses them with another model is told."""

import json
from pathlib import Path

import pytest

from d2e_sft.data.built import taggers
from d2e_sft.data.sample import EventSample, read_samples, write_samples
from tests.command import call, output_of
from tests.data_builders.own_rows import write
from tests.factories import scores_of
from tests.tiny import make_sample, make_samples, save_tiny_model

ROWS = "question,answer,context\n" + "".join(
    f"What rose on day {n}?,the river,Rain fell on day {n}. Then the river rose.\n" for n in range(12)
)
SPEC = "train: mine.csv\ntest: 0.25\nformat: qa\nrelation: none\nlicence: MIT\n"


def tag(data: Path, model: Path, out: Path, *flags: str) -> str:
    given = ("--model", model, "--out", out, "--max-new-tokens", 6, "--threshold", 0, *flags)
    return output_of("data", "tag", data, *given)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build of own rows, two models, and the rows tagged by the first."""
    folder = tmp_path_factory.mktemp("tags")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("D2E_CACHE", str(folder / "cache"))
        for seed, name in enumerate(("model", "other")):
            save_tiny_model(folder / name, seed=seed)
        spec = write(folder, mine_csv=ROWS, mine_yaml=SPEC)
        output_of("data", "build", "--datasets", spec, "--out", folder / "mine")
        tag(folder / "mine", folder / "model", folder / "tagged")
    return folder


def rows(folder: Path) -> list[EventSample]:
    return [row for split in ("train", "test") for row in read_samples(folder / f"{split}.parquet")]


def test_rows_get_three_fields_and_stay_otherwise_as_they_are(world: Path) -> None:
    before, after = rows(world / "mine"), rows(world / "tagged")
    assert all(row.subset in ("aligned", "conflict", "unknown") for row in after)
    bare = [
        row.model_copy(update={"subset": None, "habit": [], "meta": {k: v for k, v in row.meta.items() if k != "tag"}})
        for row in after
    ]
    assert bare == before
    assert taggers(after) == {str(world / "model"): 12}
    made = after[0].meta["tag"]
    assert (made["confidence"], made["threshold"]) == ("probability", 0)
    assert all((row.meta["tag"]["probability"] is None) == (not row.habit) for row in after)


def test_manifest_and_card_say_who_made_the_tags(world: Path) -> None:
    manifest = json.loads((world / "tagged" / "manifest.json").read_text())
    assert manifest["tags"]["model"] == str(world / "model")
    assert manifest["tags"]["identity"].startswith("sha256:")
    splits = manifest["datasets"]["mine"]["splits"]
    assert [sum(splits[split]["rows_by_subset"].values()) for split in ("train", "test")] == [9, 3]
    assert f"d2e data tag OUT --model {world / 'model'}" in (world / "tagged" / "README.md").read_text()


def test_the_model_of_the_tags_is_no_news_and_another_is_told_in_one_line(world: Path) -> None:
    for name in ("model", "other"):
        called = call(
            "eval", world / name, "--bench", world / "tagged", "--out", world / f"run-{name}", "--max-new-tokens", 6
        )
        assert called.status == 0, called.err
        assert ("tagged with the habit of" in called.err) == (name == "other")
        assert scores_of(world / f"run-{name}", "tagged")["tagged_by"] == [str(world / "model")]


def test_a_file_of_rows_is_tagged_into_a_file(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("D2E_CACHE", str(tmp_path / "cache"))
    for number, flags in ((3, ()), (2, ("--overwrite",))):
        write_samples(make_samples(number), tmp_path / "rows.jsonl")
        tag(tmp_path / "rows.jsonl", world / "model", tmp_path / "out.parquet", *flags)
        assert taggers(read_samples(tmp_path / "out.parquet")) == {str(world / "model"): number}


def test_rows_are_tagged_by_their_own_questions_without_a_model(world: Path, tmp_path: Path) -> None:
    answers = ["the fog" if n == 5 else "the river" for n in range(20)]
    rows = [make_sample(n, context=f"Day {n}.", question="What rose?", answers=[answers[n]]) for n in range(20)]
    refusal = make_sample(20, context="Day 20.", question="What rose?", answers=["not said"], subset="unanswerable")
    write_samples([*rows, refusal], tmp_path / "rows.jsonl")
    output_of("data", "tag", tmp_path / "rows.jsonl", "--by", "questions", "--out", tmp_path / "out.jsonl")
    *tagged, kept = read_samples(tmp_path / "out.jsonl")
    assert kept == refusal
    assert [row.subset for row in tagged] == ["conflict" if n == 5 else "aligned" for n in range(20)]
    assert (tagged[5].habit, tagged[4].habit) == (["the river"], ["the river"])
    assert tagged[5].meta["tag"] == {"by": "questions", "threshold": 0, "probability": 1.0}
    assert taggers(tagged) == {}, "the habit of the rows is no model's"
    output_of("data", "tag", world / "mine", "--by", "questions", "--out", tmp_path / "tagged")
    manifest = json.loads((tmp_path / "tagged" / "manifest.json").read_text())
    assert manifest["tags"] == {"by": "questions", "threshold": 0}
    assert "d2e data tag OUT --by questions" in (tmp_path / "tagged" / "README.md").read_text()
    refused = call("data", "tag", tmp_path / "rows.jsonl", "--by", "questions", "--model", "m", "--out", "new.jsonl")
    assert (refused.status, "--by questions with --model: no model is asked" in refused.err) == (1, True)
    missing = call("data", "tag", tmp_path / "rows.jsonl", "--out", "new.jsonl")
    assert (missing.status, "Missing option '--model'" in missing.err) == (2, True)
