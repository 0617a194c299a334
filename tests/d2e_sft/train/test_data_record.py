"""The digest of a run's tokens, by which a resumed run knows its data again; `test_run.py` has what is refused."""

from __future__ import annotations

import datasets

from d2e_sft.train.data_record import tokens_digest


def test_the_digest_is_of_every_token_in_its_place() -> None:
    rows = [{"original": [1, 2], "answer": [3]}, {"original": [4], "answer": [5, 6]}]
    moved = [{"original": [1], "answer": [3]}, {"original": [2, 4], "answer": [5, 6]}]
    one, same, other = (tokens_digest(datasets.Dataset.from_list(each)) for each in (rows, rows, moved))
    assert one == same != other
    weighted = [
        tokens_digest(datasets.Dataset.from_list(rows).add_column("weight", w)) for w in ([1.0, 2.0], [2.0, 1.0])
    ]
    assert len({one, *weighted}) == 3
