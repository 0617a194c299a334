"""Samples and their files, and built folders with a manifest that must be theirs."""

import json
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from d2e_sft.data.sample import MOST_CHARACTERS, pick_samples, read_samples, write_bad_rows, write_samples
from d2e_sft.util.errors import UserError
from tests.command import d2e, refusal_of
from tests.d2e_sft.hub.runs import make_run
from tests.factories import (
    bench_rows,
    evaluate,
    evaluation,
    save_bench,
    train_rows,
    write_recipe,
)
from tests.tiny import chat_sample, make_sample, make_samples, save_tiny_model


@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
def test_rows_survive_a_round_trip(tmp_path: Path, ending: str) -> None:
    samples = [
        *make_samples(3),
        chat_sample(),
        make_sample(9, format="mcq", options=["a", "b", "ü"], answers=["b", "ü"], refined_context=None),
        make_sample(10, format="nli", answers=["negative"], meta={"row": 3, "nested": {"x": [1, None]}}),
    ]
    for name in ("first", "second"):
        write_samples(samples, tmp_path / f"{name}.{ending}")
        assert read_samples(tmp_path / f"{name}.{ending}") == samples
    assert (tmp_path / f"first.{ending}").read_bytes() == (tmp_path / f"second.{ending}").read_bytes()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("none.parquet", None, "no such file"),
        ("rows.csv", b"id\n", r"cannot read \.csv; expected \.parquet or \.jsonl"),
        ("rows.parquet", b"PAR1" + 196 * b"x", r"rows\.parquet: not a readable Parquet file \(200 bytes"),
        ("rows.jsonl", b'{"id": "a", "id": "b"}\n', "line 1: .*the key 'id' is given twice"),
    ],
)
def test_an_unreadable_file_is_a_clear_error(tmp_path: Path, name: str, content: bytes | None, said: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=said):
        read_samples(tmp_path / name)


def _write_rows(path: Path, *changes: dict[str, Any]) -> Path:
    rows = [{**make_sample(i).model_dump(), **change} for i, change in enumerate(changes)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"answers": [""]}, r"answers\.0: got ''; expected text that is not empty"),
        ({"answers": []}, r"answers: got \[\]; List should have at least 1 item"),
        ({"format": "nli", "answers": ["maybe"]}, r"\['maybe'\] for an nli sample; expected one of"),
        ({"format": "scq", "options": ["a", "b"], "answers": ["c"]}, r"\['c'\] not among the options"),
        ({"format": "scq", "options": ["a", "b"], "answers": ["a", "b"]}, "expected exactly one"),
        ({"format": "mcq"}, "options: empty for a sample of format mcq"),
        ({"format": "mcq", "options": ["a", "a"], "answers": ["a"]}, "same candidate twice"),
        ({"options": ["a"]}, "for a sample of format qa; expected none"),
        ({"rejected": ["the river!"]}, r"rejected: \['the river!'\] is a right answer; expected another"),
        ({"rejected": ["a fish", "River."]}, r"'River\.' is the right answer 'the river!' up to letter case"),
        ({"answers": ["It's 5 km."], "rejected": ["its 5 KM"]}, "rejected: 'its 5 KM' is the right answer"),
        ({"format": "scq", "options": ["a", "b"], "answers": ["a"], "rejected": ["c"]}, r"rejected: \['c'\] not amo"),
        ({"relation": "spatial"}, "relation: got 'spatial'; Input should be 'temporal'"),
        ({"subset": "aligne"}, "subset: got 'aligne'; Input should be 'aligned', 'conflict'"),
        ({"colour": "red"}, "colour: got 'red'; Extra inputs are not permitted"),
        ({"context": "half \ud83d"}, "lone surrogate"),
        ({"meta": {"row": ["\udc00"]}}, "lone surrogate"),
        ({"meta": {"\ud800": 1}}, "lone surrogate"),
        ({"meta": {"loss": float("nan")}}, "NaN, infinity and deep nesting"),
        ({"meta": {"loss": float("inf")}}, "NaN, infinity and deep nesting"),
    ],
)  # fmt: skip
def test_a_bad_row_is_named_by_file_line_field_and_value(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    path = _write_rows(tmp_path / "rows.jsonl", {}, change)
    with pytest.raises(UserError, match=rf"rows\.jsonl, line 2: .*{said}"):
        read_samples(path)


def test_bad_rows_can_be_collected_and_written(tmp_path: Path) -> None:
    path = _write_rows(tmp_path / "rows.jsonl", {}, {"answers": [""]}, {}, {"split": "other"})
    with path.open("ab") as out:
        out.write(b'{"id": "cut off\n')
        out.write(b"[1]\n")
        out.write(json.dumps(make_sample(0).model_dump()).encode())
    collected: list[dict[str, Any]] = []
    assert [sample.id for sample in read_samples(path, bad_rows=collected)] == ["s0", "s2"]
    side = tmp_path / "aside" / "bad.jsonl"
    write_bad_rows(collected, side)
    bad = [json.loads(line) for line in side.read_text().splitlines()]
    assert [entry["line"] for entry in bad] == [2, 4, 5, 6, 7]
    assert "answers.0" in bad[0]["error"]
    assert "not a JSON object" in bad[2]["error"]
    assert bad[3]["error"] == "got [1]; expected a JSON object"
    assert bad[4]["error"] == "id: got 's0', which line 1 has too; expected a unique id"
    write_bad_rows([], side)
    assert not side.exists(), "a clean file must not seem to have had bad rows"


@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
@pytest.mark.parametrize("field", ["context", "refined_context", "question", "answers"])
def test_a_row_longer_than_any_model_reads_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, field: str
) -> None:
    long = "é" * (MOST_CHARACTERS + 1)
    with monkeypatch.context() as unchecked:
        unchecked.setattr("d2e_sft.data.sample.MOST_CHARACTERS", 10**9)
        rows = [make_sample(0), make_sample(1, **{field: [long] if field == "answers" else long}), make_sample(2)]
        write_samples(rows, tmp_path / f"rows.{ending}")
    with pytest.raises(UserError, match=r"line 2: the row's texts have 4,000,\d+ characters; expected at most 4,0"):
        read_samples(tmp_path / f"rows.{ending}")
    assert len(read_samples(tmp_path / f"rows.{ending}", bad_rows=[])) == 2


def test_a_line_longer_than_any_row_is_not_read_whole(tmp_path: Path) -> None:
    file, good = tmp_path / "rows.jsonl", [json.dumps(make_sample(n).model_dump()).encode() + b"\n" for n in range(2)]
    with file.open("wb") as out:
        out.write(good[0] + b'{"id": "')
        out.truncate(600_000_000)  # zeros, which take no room on the disk
        out.seek(0, 2)
        out.write(b'"}\n' + good[1])
    bad: list[dict[str, Any]] = []
    tracemalloc.start()
    assert [sample.id for sample in read_samples(file, bad_rows=bad)] == ["s0", "s1"]
    assert tracemalloc.get_traced_memory()[1] < 200_000_000
    tracemalloc.stop()
    assert bad[0]["line"] == 2
    assert "has more than 48,000,000 bytes; expected at most 4,000,000 characters" in bad[0]["error"]
    assert len(bad[0]["row"]) <= 1000


@pytest.mark.parametrize(
    "change",
    [
        {"options": [f"o{i}" for i in range(20_000)], "answers": [f"p{i}" for i in range(20_000)]},
        {f"k{i}": i for i in range(50_000)},
        {"id": "x" * 1_000_000, "relation": "y" * 1_000_000},
    ],
    ids=["no answer is an option", "unknown fields", "long texts"],
)
def test_a_large_bad_row_is_rejected_quickly_with_a_short_message(tmp_path: Path, change: dict[str, Any]) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(make_sample(0).model_dump() | {"format": "scq"} | change) + "\n", encoding="utf-8")
    started = time.process_time()
    with pytest.raises(UserError) as error:
        read_samples(file)
    assert len(str(error.value)) < 3_000
    assert time.process_time() - started < 2


CHOICE: dict[str, Any] = {"format": "scq", "options": ["cat", "dog", "cow"], "answers": ["cat"]}
SEVERAL: dict[str, Any] = {"format": "mcq", "options": ["cat", "dog", "cow"], "answers": ["cat", "dog"]}
SWAPPED = {"meta": {"swapped": {"from": "the hill", "to": "the river"}}}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"rejected": ["a fish", "fishes"], "habit": ["a stone"]}, ("rejected", ["a fish"])),
        ({"answers": ["5"], "rejected": ["-5"]}, ("rejected", ["-5"])),
        ({"answers": ["15 %"], "rejected": ["1.5 %"]}, ("rejected", ["1.5 %"])),
        ({"answers": ["C++"], "rejected": ["C#"]}, ("rejected", ["C#"])),
        ({**CHOICE, "options": ["cat", "Cat"], "rejected": ["Cat"]}, ("rejected", ["Cat"])),
        ({"habit": ["a stone", "stones"], **SWAPPED}, ("habit", ["a stone"])),
        ({"habit": ["River"]}, None),  # an accepted answer, but for case and article
        ({"habit": ["The river"], **SWAPPED}, ("swap", ["the hill"])),
        ({"answers": ["Ann Lee"], "habit": ["Lee"], "subset": "unknown"}, None),  # a part of an accepted answer
        ({"answers": ["Ann Lee"], "habit": ["It was Ann Lee."]}, None),
        ({"answers": ["Ann Lee"], "habit": ["Le"]}, ("habit", ["Le"])),
        ({"answers": ["Bath, not York"], "habit": ["York"], "subset": "conflict"}, ("habit", ["York"])),
        ({**CHOICE, "habit": ["horse", "cow"]}, ("habit", ["cow"])),
        ({**CHOICE, "habit": ["horse"]}, None),
        ({**CHOICE, "habit": ["cow", "cat"]}, None),
        ({**SEVERAL, "habit": ["dog", "cow"]}, ("habit", ["dog", "cow"])),
        ({**SEVERAL, "habit": ["dog", "cat"]}, None),
        ({"format": "nli", "answers": ["positive"], "habit": ["negative"]}, ("habit", ["negative"])),
    ],
)
def test_the_rejected_answer_has_three_sources(
    changes: dict[str, Any], expected: tuple[str, list[str]] | None
) -> None:
    assert make_sample(0, **changes).rejected_answers == expected


@pytest.fixture
def build(tmp_path: Path) -> Path:
    """A build whose files are as its manifest says."""
    return save_bench(tmp_path / "bench", bench_rows(4), train_rows(4), manifest={})


def test_all_readers_warn_of_an_edited_file(tmp_path: Path, build: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_tiny_model(tmp_path / "model", seed=3)
    recipe = write_recipe(tmp_path, tmp_path / "run", f"data.train={build / 'train.parquet'}", "train.max_steps=1")
    write_samples(train_rows(3), build / "train.parquet")
    assert (d2e("train", recipe), evaluate(tmp_path, tmp_path / "scores")) == (0, 0)
    warnings = capsys.readouterr().err
    assert f"warning: {build / 'train.parquet'}: changed after it was built" in warnings
    assert "test.parquet: changed after it was built" not in warnings
    write_samples(bench_rows(3), build / "test.parquet")
    assert evaluate(tmp_path, tmp_path / "others") == 0
    assert f"warning: {build / 'test.parquet'}: changed after it was built" in capsys.readouterr().err


DAMAGED = {
    "empty": "",
    "cut": '{"project": "d2e-sft", "version": "0.1.0", "outputs": {"test.parq',
    "a list": "[]",
    "without outputs": '{"files": null}',
    "no checksum": json.dumps({"project": "d2e-sft", "version": "1", "outputs": {"test.parquet": {}}, "datasets": {}}),
    "other project": json.dumps({"project": "x", "version": "1", "outputs": {}, "datasets": {}}),
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED)
def test_rows_next_to_a_damaged_manifest_are_not_used(tmp_path: Path, build: Path, text: str) -> None:
    save_tiny_model(tmp_path / "model", seed=3)
    recipe = write_recipe(tmp_path, tmp_path / "run", f"data.train={build / 'train.parquet'}")
    (build / "manifest.json").write_text(text)
    run = make_run(tmp_path / "trained", "llama", f"data.train={build / 'train.parquet'}")
    said = f"{build / 'manifest.json'}: not the manifest of a build"
    for call in (
        ("train", recipe),
        ("train", recipe, "--dry-run"),
        evaluation(tmp_path, tmp_path / "scores"),
        ("eval", tmp_path / "model", "--suite", "piper", "--data", build),
        ("data", "push", "a/b", "--data", build),
        ("export", run, tmp_path / "out"),
    ):
        assert said in refusal_of(*call)


def test_an_id_picks_the_row_of_each_dataset_that_has_it() -> None:
    rows = [make_sample(1, dataset=dataset) for dataset in ("one", "two")]
    assert pick_samples(rows, ["s1"], count=1, seed=0) == rows
