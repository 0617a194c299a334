"""The file that describes own data, and what is said of a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from data_builders.build.options import BuildOptions
from data_builders.build.run import build
from tests.data_builders.own_rows import QA, QA_ROWS, error_of, write


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
