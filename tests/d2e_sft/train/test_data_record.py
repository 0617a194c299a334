"""The digest of a run's tokens, by which a resumed run knows its data again; `test_run.py` has what is refused."""

from __future__ import annotations

import hashlib

import numpy as np
from datasets import Dataset, Features, LargeList, List, Value

from d2e_sft.train.data_record import tokens_digest


def test_the_digest_is_of_every_token_in_its_place() -> None:
    rows = [{"original": [1, 2], "answer": [3]}, {"original": [4], "answer": [5, 6]}]
    moved = [{"original": [1], "answer": [3]}, {"original": [2, 4], "answer": [5, 6]}]
    # Column by column: its name, how many tokens each row has, and the tokens.
    columns = (b"answer", [1, 2], [3, 5, 6]), (b"original", [2, 1], [1, 2, 4])
    told = [(name, np.int32(lengths).tobytes(), np.int64(tokens).tobytes()) for name, lengths, tokens in columns]
    expected = hashlib.sha256(b"".join(part for parts in told for part in parts)).hexdigest()
    assert tokens_digest(rows) == expected != tokens_digest(moved)
    for kind in (List(Value("int32")), LargeList(Value("int64"))):
        dataset = Dataset.from_list(rows, features=Features({"original": kind, "answer": kind}))
        assert tokens_digest(dataset.select([1, 0]).select([1, 0])) == expected, "as of a list of rows"
    trained = [{**row, "trained": [True] * len(row["answer"])} for row in rows]
    assert tokens_digest(trained) == expected, "it follows from the tokens"
