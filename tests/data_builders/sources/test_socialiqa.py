"""SocialIQA: which raw rows become which samples."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from data_builders.raw.reader import BadRows
from tests.data_builders.raw_rows import SOCIALIQA
from tests.data_builders.reading import read


def test_socialiqa_offers_a_repeated_answer_once(raw: Path) -> None:
    first, second = read(raw, "socialiqa")["test"].rows
    assert (first.options, first.answers) == (["ice", "joy", "rain"], ["ice"])
    assert (second.options, second.answers) == (["glad", "sad"], ["glad"])


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ("1\n", r"dev-labels\.lst: has no label on line 2, where .*dev\.jsonl has a row \(1 labels, 2 rows\)"),
        ("1\n2\n3\n", r"dev\.jsonl: has no row on line 3, where .*dev-labels\.lst has a label \(3 labels, 2 rows\)"),
        ("1\n4\n", r"dev-labels\.lst, line 2: label: got '4'; expected one of \['1', '2', '3'\]"),
        ("", r"dev-labels\.lst: the file is empty"),
    ],
)
def test_labels_must_fit_their_rows(raw: Path, labels: str, message: str) -> None:
    (raw / "ood/socialiqa/dev-labels.lst").write_text(labels)
    with pytest.raises(UserError, match=message):
        read(raw, "socialiqa")


@pytest.mark.parametrize(
    ("rows", "labels", "message"),
    [
        ("ROW\n\nROW\n", "1\n2\n", r"dev\.jsonl: has no row on line 2"),
        ("ROW\nROW\n", "1\n\n2\n", r"dev-labels\.lst: has no label on line 2"),
        ("<html>", "1\n2\n", r"dev\.jsonl: holds a web page"),
        ("version https://git-lfs.github.com/spec/v1\n", "1\n", r"dev\.jsonl: holds a Git LFS pointer"),
        ("ROW\nROW\n", "404: Not Found", r"dev-labels\.lst: holds a server's error message"),
        ("ROW\nROW\n", "1\r2\r", r"dev-labels\.lst, line 1: a carriage return"),
    ],
)
def test_of_two_files_the_one_at_fault_is_blamed(raw: Path, rows: str, labels: str, message: str) -> None:
    row = json.dumps(SOCIALIQA[0])
    (raw / "ood/socialiqa/dev.jsonl").write_text(rows.replace("ROW", row))
    (raw / "ood/socialiqa/dev-labels.lst").write_text(labels)
    with pytest.raises(UserError, match=message):
        read(raw, "socialiqa")


@pytest.mark.parametrize("bad", [b"caf\xe9", b"{", b'{"context": 3}'])
def test_a_bad_row_costs_itself_only_and_is_recorded_once_in_its_folder(raw: Path, bad: bytes) -> None:
    path = raw / "ood/socialiqa/dev.jsonl"
    path.write_bytes(bad + b"\n" + path.read_bytes().splitlines(keepends=True)[1])
    aside = BadRows(skip=True)
    (sample,) = read(raw, "socialiqa", bad=aside)["test"].rows
    assert sample.meta["line"] == 2
    (entry,) = aside.entries
    assert (entry["file"], entry["line"]) == ("ood/socialiqa/dev.jsonl", 1)


def test_a_bad_label_costs_its_row_and_is_recorded_once(raw: Path) -> None:
    (raw / "ood/socialiqa/dev-labels.lst").write_bytes(b"\xe9\n3\n")
    aside = BadRows(skip=True)
    assert len(read(raw, "socialiqa", bad=aside)["test"].rows) == 1
    assert [entry["file"] for entry in aside.entries] == ["ood/socialiqa/dev-labels.lst"]
