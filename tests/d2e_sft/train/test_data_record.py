"""The record of a run's data: it is the content that counts, not the place."""

from __future__ import annotations

import shutil
from pathlib import Path

import datasets
import pytest

from d2e_sft.config.recipe import Recipe
from d2e_sft.data.sample import write_samples
from d2e_sft.train.data_record import DATA_FILE, DataSource, record_data, refuse_other_source, tokens_digest
from d2e_sft.util.errors import UserError
from tests.tiny import make_samples


def recipe(train: Path, run: Path) -> Recipe:
    return Recipe.model_validate({"data": {"train": str(train)}, "train": {"output_dir": str(run)}})


def test_a_file_that_moved_is_the_same_and_one_with_other_rows_is_not(tmp_path: Path) -> None:
    write_samples(make_samples(3), tmp_path / "a.jsonl")
    write_samples(make_samples(4), tmp_path / "b.jsonl")
    shutil.copy(tmp_path / "a.jsonl", tmp_path / "moved.jsonl")
    a, moved, b = (DataSource.of(recipe(tmp_path / f"{name}.jsonl", tmp_path)) for name in ("a", "moved", "b"))
    assert a.changes(moved) == []
    assert "data.train, rows: 3 → 4" in a.changes(b)


def test_the_digest_is_of_every_token_in_its_place() -> None:
    rows = [{"original": [1, 2], "answer": [3]}, {"original": [4], "answer": [5, 6]}]
    moved = [{"original": [1], "answer": [3]}, {"original": [2, 4], "answer": [5, 6]}]
    one, same, other = (tokens_digest(datasets.Dataset.from_list(each)) for each in (rows, rows, moved))
    assert one == same != other
    weighted = [
        tokens_digest(datasets.Dataset.from_list(rows).add_column("weight", w)) for w in ([1.0, 2.0], [2.0, 1.0])
    ]
    assert len({one, *weighted}) == 3


def test_a_record_is_read_again_and_one_that_is_missing_is_named(tmp_path: Path) -> None:
    write_samples(make_samples(2), tmp_path / "a.jsonl")
    of = recipe(tmp_path / "a.jsonl", tmp_path)
    with pytest.raises(UserError, match=f"holds no {DATA_FILE}"):
        refuse_other_source(of, tmp_path)
    dataset = datasets.Dataset.from_list([{"original": [1], "answer": [2]}])
    record_data(of, dataset, processes=1).save(tmp_path)
    refuse_other_source(of, tmp_path)
    write_samples(make_samples(3), tmp_path / "a.jsonl")
    with pytest.raises(UserError, match="was started with other data"):
        refuse_other_source(of, tmp_path)
