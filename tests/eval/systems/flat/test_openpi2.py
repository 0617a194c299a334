"""Flat predictions for OpenPI2.0: the columns say the task, and damaged lines are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from eval.systems.flat.openpi2 import COLUMNS, read_flat, task_of


def save(folder: Path, text: str) -> Path:
    file = folder / "p.csv"
    file.write_text(text)
    return file


@pytest.mark.parametrize("task", COLUMNS)
def test_the_columns_say_the_task(tmp_path: Path, task: str) -> None:
    columns = COLUMNS[task]
    assert task_of(save(tmp_path, f"{','.join(columns)}\n{','.join('1' * len(columns))}\n")) == task


def test_clusters_of_attributes_are_named_by_their_first(tmp_path: Path) -> None:
    text = "procedure,entity,attribute,cluster\n1,tea,heat,b\n1,tea,place,a\n1,tea,temperature,b\n"
    assert read_flat(save(tmp_path, text)) == {"1": {"tea": {"heat": ["temperature"], "place": ["place"]}}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no prediction"),
        ("a,b\n1,2\n", "line 2: got the columns a, b; expected those of a task"),
        ("procedure,step,sentence\n1,0,x\n", "line 2: step: got '0'"),
        ("procedure,step,sentence\n1,99999999,x\n", "line 2: step: got 99999999"),
        ("procedure,step,entity,attribute\n1,1,,heat\n", "line 2: entity: got '' for attribute 'heat'"),
        ("procedure,name,cluster\n1,tea,x\n1,cup,\n", "line 3: cluster: got '' for 'cup'"),
        ("task,domain,problem\n1,d,p\n1,d,p\n", "task '1' is given twice"),
    ],
)
def test_a_damaged_file_is_named_by_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_flat(save(tmp_path, text))
