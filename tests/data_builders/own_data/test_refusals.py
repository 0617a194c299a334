"""What is wrong with own data is said with its file, line, column and value, and how to mend it."""

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


@pytest.mark.parametrize(
    ("spec", "rows", "message"),
    [
        (QA, QA_ROWS + "  ,Why?,so\n", "line 4: context: got '  '; expected text that is not empty"),
        (QA, QA_ROWS + "It rained.,Why?,\n", "line 4: answer: got ''; expected text that is not empty"),
        (QA, QA_ROWS + f"{'It rained. ' * 400_000},Why?,so\n", "line 4: the row's texts have 4,400,005 characters"),
        (QA, QA_ROWS + "It rained.,Why?\n", "line 4: got 2 columns; expected 3: context, question, answer"),
        (QA, QA_ROWS + '"It rained.,Why?,so\n', "line 4: the CSV row that begins here breaks"),
        (QA.replace("relation: causal\n", ""), "context,question,answer,relation\nA b.,Why?,a,casual\n",
         "line 2: relation: got 'casual'; expected one of temporal, causal, counterfactual, subevent_conditional, "
         "factual, none, or nothing. "
         "Did you mean 'causal'?"),
        (QA, "id,context,question,answer\n1,A b.,Why?,a\n1,C d.,Why?,c\n",
         "line 3: id: got '1'; expected a unique id (the row at 2 has this one, too)"),
        (QA.replace("qa", "nli"), "context,question,answer\nA b.,C.,entailment\n",
         "line 2: answer: got 'entailment'; expected one of positive, negative. mine.yaml can map other labels, "
         "as `labels: {entailment: positive}`"),
        (SCQ, SCQ_HEAD + "A b.,Why?,a cat|a dog,a dag\n",
         "line 2: answer: got 'a dag'; expected one of the options ['a cat', 'a dog']. Did you mean 'a dog'?"),
        (SCQ, SCQ_HEAD + "A b.,Why?,cat|dog,B\n", "add `answer_as: letter` to mine.yaml"),
        (SCQ, SCQ_HEAD + "A b.,Why?,cat|dog,1\n", "add `answer_as: from-0 (or from-1)` to mine.yaml"),
        (SCQ + "answer_as: letter\n", SCQ_HEAD + "A b.,Why?,cat|dog,C\n",
         "line 2: answer: got 'C'; expected one of A, B for ['cat', 'dog']"),
        (SCQ + "answer_as: from-1\n", SCQ_HEAD + "A b.,Why?,cat|dog,0\n",
         "line 2: answer: got '0'; expected one of 1, 2 for ['cat', 'dog']"),
        (SCQ, SCQ_HEAD + "A b.,Why?,cat;dog,cat\n",
         "line 2: options: got ['cat;dog']; expected two options or more, as a list or with '|' between them "
         "(`separator:` in mine.yaml sets another)"),
        (SCQ, SCQ_HEAD + "A b.,Why?,cat|cat,cat\n", "line 2: options: 'cat' is there twice"),
        (QA, "context;question;answer\nA b.;Why?;a\n", "line 1: column 'context' is missing; found 'context;quest"),
        (QA + TAGS, "context,question,answer,kind,guess\nA b.,Why?,a,conflicts,b\n",
         "line 2: kind: got 'conflicts'; expected one of aligned, conflict, unknown, gold, irrelevant, unanswerable, "
         "or nothing. Did you mean 'conflict'?"),
        (QA + TAGS, QA_ROWS, "column 'kind' is missing"),
        (QA + "test: 0.5\n", "context,question,answer\n" + "".join(f"A b.,Why {n}?,a\n" for n in range(4)),
         "4 rows with 1 different contexts cannot be divided as requested (test 0, train 4)"),
        (QA + "test: 0.5\n", "context,question,answer\n", "mine.csv: no rows; expected some to divide"),
        (QA, "", "mine.csv: the file is empty; expected data"),
        (QA, "context,question,answer\n" * 2 + "a,b,c\n", "line 2: repeats the header"),
        (QA, "passage,query,label\na,b,c\n", "columns: {context: passage, question: query, answer: label}"),
    ],
)  # fmt: skip
def test_a_bad_row_is_named_with_file_line_column_and_value(
    tmp_path: Path, spec: str, rows: str, message: str
) -> None:
    error = error_of(write(tmp_path, mine_yaml=spec, mine_csv=rows))
    assert f"{tmp_path}/mine.csv" in error.message
    assert message in str(error)
    assert "--raw" not in str(error)


def test_another_delimiter_is_asked_for_and_then_read(tmp_path: Path) -> None:
    rows = QA_ROWS.replace('"', "").replace(",", ";").replace("fell;", "fell,")
    quoted = "\n".join(";".join(f'"{cell}"' for cell in line.split(";")) for line in rows.splitlines())
    for content in (quoted, rows):
        spec = write(tmp_path, mine_yaml=QA, mine_csv=content)
        assert 'perhaps `delimiter: ";"`' in str(error_of(spec).remedy)
    assert rows_of(write(tmp_path, mine_yaml=QA + 'delimiter: ";"\n'))[0].answers == ["rain fell"]


def test_json_that_is_no_text_is_refused_with_the_place_in_the_list(tmp_path: Path) -> None:
    row = {"context": "A b.", "question": "Why?", "options": ["a", {"text": "b"}], "answer": "a"}
    error = error_of(write(tmp_path, mine_yaml=SCQ.replace("csv", "json"), mine_json=json.dumps([row])))
    assert "mine.json, item 1: options.1: got {'text': 'b'}; expected text or a number" in error.message


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


def test_wrong_answers_are_options_where_the_format_has_options(tmp_path: Path) -> None:
    spec = write(tmp_path, mine_yaml=f"{SCQ}columns: {{choices: wrong}}\n", mine_csv=SCQ_HEAD + "A b.,Why?,a|b,a\n")
    assert "columns.choices: not used for format scq; drop it" in str(error_of(spec))


def test_a_rejected_answer_is_read_from_the_column_that_is_named(tmp_path: Path) -> None:
    named = "columns: {rejected: worse}\n"
    rows = "context,question,options,answer,worse\nA b.,Why?,cat|dog,A,B\nC d.,Why?,cat|dog,B,\n"
    spec = write(tmp_path, mine_yaml=SCQ + named + "answer_as: letter\n", mine_csv=rows)
    assert [row.rejected for row in rows_of(spec)] == [["dog"], []]
    rows = "context,question,answer,worse\nA b.,Why?,a,b\nA b.,How?,a,a\n"
    error = error_of(write(tmp_path, mine_yaml=QA + named, mine_csv=rows))
    assert "mine.csv, line 3: rejected: ['a'] is a right answer; expected another one, or nothing" in error.message


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


# The description


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (QA + "colums: {}", "unknown key 'colums' (value {}); expected some of train, dev, test, format, relation"),
        (QA + "colums: {}", "Did you mean 'columns'?"),
        (QA + "columns: {contxt: a}", "unknown key 'columns.contxt' (value 'a'); expected some of context, question"),
        (QA + "columns: {passage: context}", "The part of the sample comes first: `context: passage`."),
        (QA.replace("qa", "quiz"), "format: got 'quiz'; Input should be 'nli', 'scq', 'mcq', 'qa' or 'chat'"),
        (QA.replace("format: qa\n", ""), "format: missing; expected a value"),
        (QA.replace("causal", "cause"), "relation: got 'cause'; Input should be 'temporal'"),
        ("format: qa\nrelation: causal", "train: no file is named; expected one, as `train: mine.csv`"),
        (QA + "test: 1.5", "test: got 1.5; expected a file, or a share of train between 0 and 1"),
        (QA + "test: 0.5\ndev: 0.5", "dev and test: take all of train"),
        (QA.replace("train", "dev") + "test: 0.5", "test: got the share 0.5 of train; expected `train:` to name"),
        (QA + "test: mine.csv", "test: 'mine.csv' is also the file of train; expected a file for each split"),
        (QA + "test: ./mine.csv", "test: './mine.csv' is also the file of train; expected a file for each split"),
        (QA.replace("mine.csv", "mine.parquet.gz"), "mine.parquet.gz'; expected a file that ends in"),
        (QA + "test: mine.xlsx", "mine.xlsx'; expected a file that ends in .csv, .tsv, .jsonl"),
        (QA + " columns: {a\n", "not a YAML file (line 4, column 9: mapping values are not allowed here)"),
        (QA + "test: mime.csv", "mime.csv: no such file. Did you mean 'mine.csv'?"),
        (QA + "labels: {a: positive}", "labels: not used for format qa; drop it"),
        (QA.replace("qa", "nli") + "labels: {entailment: true}",
         "labels.entailment: got 'true'; Input should be 'positive' or 'negative'"),
        (QA + "answer_as: letter", "answer_as: not used for format qa; drop it"),
        (QA + "columns: {relation: r}", "columns.relation: not used with relation causal; drop it"),
        (QA + "name: my data", "name: got 'my data'; expected letters"),
        (QA + "format: qa", "the key 'format' is given twice"),
        ("- a", "contains list; expected keys and values"),
        ("a: [", "not a YAML file"),
    ],
)  # fmt: skip
def test_a_wrong_description_is_named_with_key_value_and_what_was_expected(
    tmp_path: Path, text: str, message: str
) -> None:
    error = error_of(write(tmp_path, mine_yaml=text, mine_csv=QA_ROWS))
    assert f"{tmp_path}/mine.yaml: " in error.message
    assert message in error.message


@pytest.mark.parametrize("name", ["ecare", "refine", "all"])
def test_own_data_may_not_take_a_name_that_means_something_else(tmp_path: Path, name: str) -> None:
    error = error_of(write(tmp_path, mine_yaml=QA + f"name: {name}\n", mine_csv=QA_ROWS))
    assert f"its name is {name!r}, which is already taken" in error.message


def test_two_descriptions_need_two_names_but_one_may_be_named_twice(tmp_path: Path) -> None:
    specs = [write(tmp_path / folder, mine_yaml=QA, mine_csv=QA_ROWS) for folder in ("a", "b")]
    with pytest.raises(UserError, match=r"b/mine\.yaml: its name is 'mine'"):
        build(BuildOptions([str(spec) for spec in specs], tmp_path / "out"))
    assert len(build(BuildOptions([str(specs[0])] * 2, tmp_path / "out")).manifest["datasets"]) == 1


def test_without_a_description_the_error_shows_how_to_write_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"unknown dataset(.|\n)*train: mine.jsonl"):
        build(BuildOptions(["mine.jsonl"], tmp_path / "out"))
    error = error_of(tmp_path / "mine.yaml")
    assert "mine.yaml: no such file; expected the description of own data" in error.message
    assert "columns: {context: passage" in str(error.remedy)
