"""Flat predictions for OpenPI2.0: the columns say the task, and damaged lines are named."""

from __future__ import annotations

from pathlib import Path

import pytest

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
