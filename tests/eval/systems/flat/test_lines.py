"""Lines of flat files, and OpenPI2.0's forms: JSON lines and CSV, what is refused in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from eval.systems.flat.lines import is_flat, read_lines, refuse_unfilled, write_lines
from eval.systems.flat.openpi2 import COLUMNS, read_flat, task_of
from tests.eval.systems.files import save


def test_csv_has_quotes_line_ends_and_null(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes('\ufeffid, output\r\n\r\n1,"the cup, ""red""\nand blue"\r\n2,null\r\n3,\r\n'.encode())
    rows = [row for _, row in read_lines(file)]
    assert rows == [
        {"id": "1", "output": 'the cup, "red"\nand blue'},
        {"id": "2", "output": None},
        {"id": "3", "output": ""},
    ]


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
def test_what_is_written_is_read(tmp_path: Path, name: str) -> None:
    rows = [{"id": "1", "text": 'a "b", c\n'}, {"id": "2", "text": ""}]
    file = save(tmp_path / name, write_lines(tmp_path / name, rows))
    assert is_flat(file)
    assert [row for _, row in read_lines(file)] == rows


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,output\n1,a,b\n", r"line 2: got \['1', 'a', \['b'\]\]; expected a cell for each of \['id', 'output'\]"),
        ("id,output\n1\n", r"line 2: got \['1'\]; expected a cell for each of \['id', 'output'\]"),
        ("id,id\n1,2\n", r"line 1: got columns \['id', 'id'\]; expected unique names"),
        ('id,output\n1,"a"b\n', "not CSV"),
    ],
)
def test_a_damaged_csv_is_named_by_line(tmp_path: Path, text: str, message: str) -> None:
    file = save(tmp_path / "a.csv", text)
    with pytest.raises(UserError, match=message):
        list(read_lines(file))


def test_a_template_that_nobody_filled_in_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no answer is filled in"):
        refuse_unfilled(tmp_path, ["", ""], "answer")
    refuse_unfilled(tmp_path, ["", None], "answer")
    refuse_unfilled(tmp_path, [], "answer")


@pytest.mark.parametrize("task", COLUMNS)
def test_the_columns_say_the_task(tmp_path: Path, task: str) -> None:
    columns = COLUMNS[task]
    assert task_of(save(tmp_path / "p.csv", f"{','.join(columns)}\n{','.join('1' * len(columns))}\n")) == task


def test_clusters_of_attributes_are_named_by_their_first(tmp_path: Path) -> None:
    text = "procedure,entity,attribute,cluster\n1,tea,heat,b\n1,tea,place,a\n1,tea,temperature,b\n"
    assert read_flat(save(tmp_path / "p.csv", text)) == {"1": {"tea": {"heat": ["temperature"], "place": ["place"]}}}
