"""Check of training and held-out rows that are given as tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from d2e_sft.config.d2e import D2ESection
from d2e_sft.data.rows import plain
from d2e_sft.train.data_record import column_of
from d2e_sft.util.errors import UserError, shortened

_MARKS = ("content", "trained")  # columns with a mark for each answer token


def check_token_rows(rows: Any, name: str, columns: Sequence[str], d2e: D2ESection, vocabulary: int) -> None:
    """Raise UserError, with row and column, unless the rows are lists of token ids.

    Args:
        rows: a list of dicts or a `datasets.Dataset`.
        name: for messages.
        columns: those of the first row.
        vocabulary: the ids must be below it.
    """
    if missing := [view for view in d2e.views if view not in columns]:
        raise UserError(
            f"{name}: rows of tokens without the column {', '.join(missing)}; the objective {d2e.objective} "
            f"needs prompt ids of the views {', '.join(d2e.views)}",
            remedy="add them, or give rows with `question`, `answer` and `context`",
        )
    if not len(rows):
        raise UserError(f"{name}: no rows; expected at least one")
    answers = _check_ids(rows, name, "answer", vocabulary)
    for view in d2e.views:
        _check_ids(rows, name, view, vocabulary)
    for column in (one for one in _MARKS if one in columns):
        differing = np.flatnonzero(_lengths(_column(rows, name, column)) != answers)
        if differing.size:
            row = int(differing[0])
            found = len(plain(rows[row])[column] or ())
            raise UserError(
                f"{name}, row {row}: `{column}` has {found} values; expected one for each of the {answers[row]} "
                "answer tokens"
            )


def _check_ids(rows: Any, name: str, column: str, vocabulary: int) -> Any:
    """Check a column of token ids; return the number of ids of each row."""
    lists = _column(rows, name, column)
    lengths = _lengths(lists)
    empty = np.flatnonzero(lengths == 0)
    if empty.size:
        raise UserError(f"{name}, row {empty[0]}: `{column}` is empty; expected at least one token id")
    ids = pc.list_flatten(lists)
    if not pa.types.is_integer(ids.type) or ids.null_count:
        kind = "None" if ids.null_count else f"values of type {ids.type}"
        raise UserError(f"{name}: `{column}` has {kind}; expected token ids, which are whole numbers")
    values = ids.to_numpy(zero_copy_only=False) if isinstance(ids, pa.Array) else ids.to_numpy()
    wrong = np.flatnonzero((values < 0) | (values >= vocabulary))
    if wrong.size:
        row = int(np.searchsorted(np.cumsum(lengths), wrong[0], side="right"))
        raise UserError(
            f"{name}, row {row}: `{column}` has the token id {values[wrong[0]]}; expected 0 to {vocabulary - 1}, the "
            "model's vocabulary",
            remedy="use the tokenizer of this model",
        )
    return lengths


def _lengths(lists: Any) -> Any:
    lengths = pc.fill_null(pc.list_value_length(lists), 0)
    return lengths.to_numpy(zero_copy_only=False) if isinstance(lengths, pa.Array) else lengths.to_numpy()


def _column(rows: Any, name: str, column: str) -> Any:
    """A column as lists of arrow; UserError if a row lacks it, or its values are no lists of one kind."""
    expected = f"`{column}`; expected a list with a value for each token in every row"
    try:
        found = column_of(rows, column)
    except KeyError:
        row = next(number for number, row in enumerate(rows) if column not in row)
        raise UserError(f"{name}, row {row}: no {expected}") from None
    except pa.ArrowException as error:
        raise UserError(f"{name}: {expected} ({error})") from None
    if not pa.types.is_list(found.type) and not pa.types.is_large_list(found.type):
        raise UserError(f"{name}: got {shortened(plain(rows[0])[column], 60)} in {expected}")
    return found
