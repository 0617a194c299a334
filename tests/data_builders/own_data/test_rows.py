"""Rows of own data: ids, habits, wrong answers and rejected ones; bad rows that are put aside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from d2e_sft.data.sample import read_samples
from d2e_sft.util.errors import UserError
from data_builders.build.options import BuildOptions
from data_builders.build.run import IncompleteBuildError, build
from data_builders.own_data.rows import last_turn
from data_builders.raw.row import BadRowError
from tests.data_builders.own_rows import QA, QA_ROWS, error_of, rows_of, write

SCQ = "train: mine.csv\nformat: scq\nrelation: causal\n"
SCQ_HEAD = "context,question,options,answer\n"
TAGS = "columns: {subset: kind, habit: guess}\n"


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet", "jsonl"])
def test_a_missing_column_is_named_with_those_that_exist(tmp_path: Path, ending: str) -> None:
    rows: list[dict[str, object]] = [{"context": "It rained.", "question": "Why?", "answers": "rain"}]
    tab = "," if ending == "csv" else "\t"
    text = tab.join(rows[0]) + "\n" + tab.join(map(str, rows[0].values())) + "\n"
    content = {"parquet": rows, "jsonl": json.dumps(rows[0])}.get(ending, text)
    spec = write(tmp_path, mine_yaml=QA.replace("csv", ending), **{f"mine_{ending}": content})
    error = str(error_of(spec))
    assert f"{tmp_path}/mine.{ending}" in error
    assert "'context', 'question', 'answers'. Did you mean 'answers'?" in error
    assert "`columns:` in mine.yaml" in error


def test_another_delimiter_is_asked_for_and_then_read(tmp_path: Path) -> None:
    rows = QA_ROWS.replace('"', "").replace(",", ";").replace("fell;", "fell,")
    quoted = "\n".join(";".join(f'"{cell}"' for cell in line.split(";")) for line in rows.splitlines())
    for content in (quoted, rows):
        spec = write(tmp_path, mine_yaml=QA, mine_csv=content)
        assert 'perhaps `delimiter: ";"`' in str(error_of(spec).remedy)
    assert rows_of(write(tmp_path, mine_yaml=QA + 'delimiter: ";"\n'))[0].answers == ["rain fell"]


def test_bad_rows_are_put_aside_with_their_place(tmp_path: Path) -> None:
    spec = write(tmp_path, mine_yaml=QA, mine_csv="context,question,answer\n,Why?,so\n")
    with pytest.raises(UserError, match=r"none of its rows is usable(.|\n)*without --skip-bad"):
        rows_of(spec, skip_bad=True)
    spec = write(tmp_path, mine_yaml=QA, mine_csv=QA_ROWS + ",Why?,so\n")
    assert len(rows_of(spec, skip_bad=True)) == 2
    (aside,) = [json.loads(line) for line in (tmp_path / "out/bad_rows.jsonl").read_text("utf-8").splitlines()]
    assert (aside["file"], aside["line"], aside["split"]) == ("mine/mine.csv", 4, "train")
    assert aside["error"].startswith("context: got ''")


def test_a_bad_split_costs_no_other_one_and_its_folder_stays_out_of_the_manifest(tmp_path: Path) -> None:
    spec = write(tmp_path, mine_yaml=QA + "test: t.csv\n", mine_csv=QA_ROWS, t_csv=QA_ROWS + ",Why?,so\n")
    with pytest.raises(IncompleteBuildError, match=r"t\.csv, line 4: context"):
        build(BuildOptions([str(spec)], tmp_path / "out"))
    assert len(read_samples(tmp_path / "out/train.parquet")) == 2
    manifest = (tmp_path / "out/manifest.json").read_text("utf-8")
    assert "t.csv, line 4" in manifest
    assert str(tmp_path) not in manifest


@pytest.mark.parametrize("given", [0, 1])
def test_ids_stand_in_every_row_or_in_none(tmp_path: Path, given: int) -> None:
    # A made id, mine-train-2, could be one that another row brings along.
    rows = [{"context": "A b.", "question": "Why?", "answer": "a"} for _ in range(2)]
    rows[given]["id"] = "mine-train-2"
    text = "".join(json.dumps(row) + "\n" for row in rows)
    spec = write(tmp_path, mine_yaml=QA.replace(".csv", ".jsonl"), mine_jsonl=text)
    error = error_of(spec)
    assert "mine.jsonl, line 2: id: " in error.message
    assert "expected an id in every row of the file, or in none" in error.message


def test_subset_and_habit_are_read_from_the_columns_that_are_named(tmp_path: Path) -> None:
    rows = "context,question,options,answer,kind,guess\nA b.,Why?,cat|dog,A,conflict,B\nC d.,Why?,cat|dog,B,,\n"
    spec = write(tmp_path, mine_yaml=SCQ + TAGS + "answer_as: letter\n", mine_csv=rows)
    assert [(row.subset, row.habit) for row in rows_of(spec)] == [("conflict", ["dog"]), (None, [])]
    listed = {"context": "A b.", "question": "Why?", "answer": "a", "kind": "aligned", "guess": ["a", "an a"]}
    spec = write(tmp_path, mine_yaml=QA.replace("csv", "jsonl") + TAGS, mine_jsonl=json.dumps(listed))
    assert [(row.subset, row.habit) for row in rows_of(spec)] == [("aligned", ["a", "an a"])]
    rows = "context,question,answer,subset,habit\nA b.,Why?,a,hard,smoker\n"
    assert [(row.subset, row.habit) for row in rows_of(write(tmp_path, mine_yaml=QA, mine_csv=rows))] == [(None, [])]


@pytest.mark.parametrize(
    ("columns", "head", "cells", "kept"),
    [
        ("choices: wrong", "wrong", "the dam broke| it snowed ||the dam broke", ["the dam broke", "it snowed"]),
        ("choices: [b, c]", "b,c", "the dam broke,", ["the dam broke"]),
        ("choices: wrong", "wrong", "", None),
    ],
)
def test_wrong_answers_of_a_column_are_kept_for_swaps(
    tmp_path: Path, columns: str, head: str, cells: str, kept: list[str] | None
) -> None:
    rows = f"context,question,answer,{head}\nIt rained.,Why?,it rained,{cells}\n"
    [row] = rows_of(write(tmp_path, mine_yaml=f"{QA}columns: {{{columns}}}\n", mine_csv=rows))
    assert row.meta.get("choices") == kept
    assert row.options == []


def test_a_rejected_answer_is_read_from_the_column_that_is_named(tmp_path: Path) -> None:
    named = "columns: {rejected: worse}\n"
    rows = "context,question,options,answer,worse\nA b.,Why?,cat|dog,A,B\nC d.,Why?,cat|dog,B,\n"
    spec = write(tmp_path, mine_yaml=SCQ + named + "answer_as: letter\n", mine_csv=rows)
    assert [row.rejected for row in rows_of(spec)] == [["dog"], []]


ASKED, SAID = {"role": "user", "content": "How long?"}, {"role": "assistant", "content": "5 days."}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([ASKED, SAID], "5 days."),
        ([SAID], "5 days."),
        ([{"from": "human", "value": "How long?"}, {"from": "gpt", "value": "5 days."}], "5 days."),
        (json.dumps([ASKED, SAID]), "5 days."),  # as a cell of a CSV file
        ("5 days.", "5 days."),
        ("[about] 5 days.", "[about] 5 days."),
        (["5 days.", "five days"], ["5 days.", "five days"]),
        ("", ""),
        (None, None),
    ],
)
def test_the_answer_of_turns_is_the_last_one_and_other_values_stay(value: Any, expected: Any) -> None:
    assert last_turn("worse", value) == expected


@pytest.mark.parametrize("turns", [[ASKED], [SAID, ASKED], [{"role": "assistant", "content": {"image": "x"}}]])
def test_turns_that_do_not_end_in_an_answer_are_refused(turns: list[Any]) -> None:
    with pytest.raises(BadRowError, match="worse"):
        last_turn("worse", turns)


def test_two_descriptions_need_two_names_but_one_may_be_named_twice(tmp_path: Path) -> None:
    specs = [write(tmp_path / folder, mine_yaml=QA, mine_csv=QA_ROWS) for folder in ("a", "b")]
    with pytest.raises(UserError, match=r"b/mine\.yaml: its name is 'mine'"):
        build(BuildOptions([str(spec) for spec in specs], tmp_path / "out"))
    assert len(build(BuildOptions([str(specs[0])] * 2, tmp_path / "out")).manifest["datasets"]) == 1


def test_without_a_description_the_error_shows_how_to_write_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"unknown dataset(.|\n)*train: mine.jsonl"):
        build(BuildOptions(["mine.jsonl"], tmp_path / "out"))
