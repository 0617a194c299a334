"""NQ-Swap: aligned and swapped passages, each once, and a training split by question."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from tests.data_builders.conflict_rows import NQ_SWAP, nq_swap_row, parquet_bytes
from tests.data_builders.reading import read, steps

_FILE = Path("conflict/nq-swap/dev-00000-of-00001.parquet")


def test_each_passage_of_a_question_is_one_row(raw: Path) -> None:
    found = read(raw, "nq_swap", ("test",))["test"]
    assert steps(found) == {"repeated rows": (10, 7)}
    assert [(one.subset, one.answers, one.habit) for one in found.rows[:3]] == [
        ("aligned", ["Ann Dow", "Dow"], ["Ann Dow", "Dow"]),
        ("conflict", ["Cy Fay"], ["Ann Dow", "Dow"]),
        ("conflict", ["Di Ash"], ["Ann Dow", "Dow"]),
    ]
    assert found.rows[1].context == "<P> Cy Fay wrote the song , and Bo Ray sang it in 1970 . </P>"


def test_long_passages_may_be_left_out(raw: Path) -> None:
    found = read(raw, "nq_swap", ("test",), "max_words=20")["test"]
    assert steps(found)["passages up to 20 words"] == (7, 5)


def test_training_rows_are_aligned_and_share_neither_question_nor_passage_with_the_test(raw: Path) -> None:
    for seed in range(4):
        found = read(raw, "nq_swap", ("train", "test"), "train_share=0.4", seed=seed)
        train, test = found["train"].rows, found["test"].rows
        assert {one.subset for one in train} <= {"aligned"}
        assert not {one.question for one in train} & {one.question for one in test}
        assert not {one.context for one in train} & {one.context for one in test}
        assert len({one.question for one in test}) == 2
        # Two questions share a passage: one in training and one in the test would leak it.
        asked = {one.question for one in test}
        assert len(train) == (1 if asked == {"who wrote the song", "who sang the song"} else 0)


def test_a_row_without_an_answer_is_bad(raw: Path) -> None:
    empty = {**nq_swap_row("who", "Ann ran .", ["Ann"], "Bo"), "sub_answer": [" "]}
    (raw / _FILE).write_bytes(parquet_bytes([*NQ_SWAP, empty]))
    with pytest.raises(UserError, match=r"item 6: sub_answer: got \[' '\]; expected at least one answer"):
        read(raw, "nq_swap", ("test",))


def test_the_published_file_has_the_published_counts(published_raw: Path) -> None:
    if not (published_raw / _FILE).is_file():
        pytest.skip(f"{published_raw} lacks {_FILE}")
    rows = read(published_raw, "nq_swap", ("test",))["test"].rows
    assert Counter(one.subset for one in rows) == {"aligned": 2_146, "conflict": 4_730}
    assert all(any(answer in one.context for answer in one.answers) for one in rows)
