"""Passages of other rows: unanswerable rows and distractors, checked row by row against what the data says."""

from pathlib import Path
from typing import Any

from d2e_sft.data.built import read_manifest
from d2e_sft.data.sample import EventSample, Split, read_samples
from d2e_sft.util.answers import contains
from data_builders.build.card import build_command
from data_builders.build.options import BuildOptions
from data_builders.build.run import build
from tests.data_builders.own_rows import write

NAMES = ["Aro", "Bel", "Cor", "Dia", "Elo", "Fir", "Gal", "Hal", "Ino", "Jur", "Kal", "Lum", "Mir", "Nov", "Orb"]
TOWNS = ["Lyon", "Oslo", "Porto"]
SPEC = "train: mine.csv\ntest: 0.4\nformat: qa\nrelation: none\n"


def sheets(extra: str = "") -> str:
    """A lamp each: its town is the answer, and a second question has another answer; one row's context is alone."""
    lines = ["context,question,answer"]
    for at, name in enumerate(NAMES):
        text = f"The {name}lamp is a lamp. Its spare parts are in {TOWNS[at % 3]}. It has {at + 2} bulbs."
        lines += [f"{text},Where are spare parts of the {name}lamp?,{TOWNS[at % 3]}"]
        lines += [f"{text},How many bulbs has the {name}lamp?,{at + 2}"]
    return "\n".join(lines) + "\n" + extra


def built(folder: Path, spec: str = SPEC, text: str = "", **options: Any) -> dict[Split, list[EventSample]]:
    path = write(folder, mine_yaml=spec, mine_csv=text or sheets())
    build(BuildOptions([str(path)], folder / "out", overwrite=True, **options))
    files = {split: folder / "out" / f"{split}.parquet" for split in ("train", "test")}
    return {split: read_samples(file) for split, file in files.items() if file.is_file()}  # type: ignore[misc]


def lamp_of(row: EventSample) -> str:
    return row.question.rstrip("?").split()[-1]


def test_unanswerable_rows_have_another_lamps_sheet_and_tests_get_twins(tmp_path: Path) -> None:
    rows = built(tmp_path, unanswerable=0.5, unanswerable_test=1.0)
    plain = {row.id: row for part in built(tmp_path).values() for row in part}
    train = [row for row in rows["train"] if row.subset == "unanswerable"]
    twins = [row for row in rows["test"] if row.subset == "unanswerable"]
    assert (len(rows["train"]), len(train)) == (18, 9), "half of the rows, in the place of the originals"
    assert len(rows["test"]) == 24
    assert len(twins) == 12
    assert [row for row in rows["test"] if row.subset is None] == [
        row for row in plain.values() if row.split == "test"
    ]
    for row in train + twins:
        original = plain[row.id.removesuffix("-unanswerable")]
        assert row.question == original.question
        assert row.answers == ["not stated"]
        assert row.context in {other.context for other in plain.values()}
        assert lamp_of(row) not in row.context
        assert not contains(row.context, original.answers[0])
        assert row.refined_context == row.context, "nothing in it is relevant"
        assert row.meta == original.meta | {"withheld": original.answers}
        assert original.meta
    for split, part in rows.items():
        own = {row.context for row in plain.values() if row.split == split}
        assert {row.context for row in part} <= own, "no sheet of the other split"


def test_the_right_passage_stays_among_distractors(tmp_path: Path) -> None:
    rows = built(tmp_path, distractors=2, unanswerable_test=0.5)
    plain = {row.id: row for part in built(tmp_path).values() for row in part}
    places = set()
    for row in rows["train"] + rows["test"]:
        parts = row.context.split("\n\n")
        original = plain[row.id.removesuffix("-unanswerable")]
        others = [part for part in parts if part != original.context]
        assert row.meta["distractors"] == 2
        assert len(parts) == 3 == len(set(parts))
        assert all(lamp_of(row) not in part and not contains(part, original.answers[0]) for part in others)
        if row.subset is None:
            places.add(parts.index(original.context))
            assert (row.refined_context, row.answers) == (original.refined_context, original.answers)
        else:
            assert len(others) == 3
            assert row.split == "test"
    assert places == {0, 1, 2}


def test_the_same_seed_gives_the_same_rows(tmp_path: Path) -> None:
    options: dict[str, Any] = {"unanswerable": 0.5, "unanswerable_test": 0.5, "distractors": 1}
    first = built(tmp_path, **options)
    assert built(tmp_path, **options) == first != built(tmp_path, seed=1, **options)
    words = ["--unanswerable 0.5", "--unanswerable-test 0.5", "--distractors 1"]
    command = build_command(read_manifest(tmp_path / "out"))
    assert all(word in command for word in words), "the card says how the rows were made"


def test_the_most_similar_passages_come_first(tmp_path: Path) -> None:
    near = "The Arolamp has a red shade."
    text = sheets(f"{near},What colour is the shade of the Arolamp?,red\n")
    rows = built(tmp_path, SPEC.replace("test: 0.4\n", ""), text, distractors=1)["train"]
    first = next(row for row in rows if row.question.startswith("Where") and lamp_of(row) == "Arolamp")
    assert near in first.context, "of the same lamp, whose name is the rarest word, but not of its spare parts"
    last = next(row for row in rows if "shade" in row.question)
    assert "Arolamp is a lamp" in last.context, "a sheet of the same lamp that does not speak of its shade"


def test_a_declared_refusal_is_an_answer(tmp_path: Path) -> None:
    text = sheets("The Kilolamp is green.,Where are spare parts of the Kilolamp?,n/a.\n")
    spec = SPEC.replace("test: 0.4\n", "") + "refusal: [N/A, unknown]\n"
    rows = built(tmp_path, spec, text, unanswerable=0.5)["train"]
    declared = next(row for row in rows if row.id == "mine-train-32")
    assert declared.subset == "unanswerable"
    assert declared.answers == ["N/A", "unknown", "n/a."]
    made = [row for row in rows if "withheld" in row.meta]
    assert [row.answers for row in made] == [["N/A"]] * 16, "the first text is the refusal of others"
    result = built(tmp_path, spec, text, unanswerable=0.5, refusal="not there")["train"]
    assert {row.answers[0] for row in result if "withheld" in row.meta} == {"not there"}


def test_rows_that_refuse_already_are_neither_repeated_nor_told_by_their_length(tmp_path: Path) -> None:
    """Two wordings for all rows, and contexts that answer neither, which are the only passages for others."""
    lines = ["context,question,answer"]
    for at, name in enumerate(NAMES):
        lines.append(f"The {name}lamp was sent in {1980 + at}.,When was it sent?,{1980 + at}")
        lines.append(f"The {name}fan is a fan of {TOWNS[at % 3]}.,Who sent it?,not stated")
    text, spec = "\n".join(lines) + "\n", SPEC.replace("test: 0.4\n", "") + "refusal: not stated\n"
    rows = built(tmp_path, spec, text, unanswerable=0.25)["train"]
    assert len({(row.question, row.context) for row in rows}) == len(rows) == 30, "no row repeats another"
    own = [row for row in rows if row.subset == "unanswerable" and "withheld" not in row.meta]
    assert len(own) == 15
    assert all(row.refined_context == row.context for row in own)
    rows = built(tmp_path, spec, text, distractors=1)["train"]
    assert {row.context.count("\n\n") for row in rows} == {1}, "rows that refuse have as many passages as the others"
