"""Rows as Python has them → samples: dicts with `context`, `question` and `answer`, a Dataset of such, or a file.

What a row does not say is filled in: it is a free question (`qa`), or a choice (`scq`, `mcq`) where it has options.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from d2e_sft.data.sample import EventSample, check_row, read_samples
from d2e_sft.util.errors import UserError, did_you_mean

_EXPECTED = "expected `question`, `answer` (or `answers`) and, where there is one, `context`"


def samples_of(rows: Any, name: str) -> list[EventSample]:
    """Check and complete rows.

    Args:
        rows: a `datasets.Dataset`, a list of dicts or of EventSamples, or a `.parquet` or `.jsonl` file of the latter.
        name: what they are called in messages, `train_dataset` or `eval_dataset`; the latter are of the split dev.

    Raises:
        UserError: something else, no rows, or a row that is no sample; with its number and the columns that it has.
    """
    if isinstance(rows, str | Path):
        return read_samples(rows)
    if isinstance(rows, Mapping):
        raise UserError(f"{name}: has the splits {', '.join(map(str, rows))}; expected one of them, {name}[...]")
    if not isinstance(rows, Iterable) or not hasattr(rows, "__len__"):
        raise UserError(
            f"{name}: got a {type(rows).__name__}, whose length is not known; expected a datasets.Dataset, a list of "
            "rows, or a file",
            remedy="a stream is read whole by list(rows)",
        )
    samples = [row if isinstance(row, EventSample) else _sample(row, number, name) for number, row in enumerate(rows)]
    if not samples:
        raise UserError(f"{name}: holds no rows; {_EXPECTED}")
    unused = sorted({key for row in rows if isinstance(row, Mapping) for key in row} - _TAKEN)
    if unused:
        print(f"{name}: columns that are not used: {', '.join(unused)}", file=sys.stderr)
    return samples


_TAKEN = {*EventSample.model_fields, "answer"}


def _sample(row: Any, number: int, name: str) -> EventSample:
    if not isinstance(row, Mapping):
        raise UserError(f"{name}, row {number}: got {row!r:.60}, a {type(row).__name__}; expected a dict")
    given = {key: value for key, value in row.items() if key in EventSample.model_fields and value is not None}
    answers = row.get("answers", row.get("answer"))
    if isinstance(answers, Mapping):  # SQuAD's, {"text": [...], "answer_start": [...]}
        answers = answers.get("text")
    for key, value in (("question", row.get("question")), ("answer", answers)):
        if value is None:
            raise UserError(
                f"{name}, row {number}: no `{key}`; it has {', '.join(map(str, row))}; {_EXPECTED}."
                f"{did_you_mean(key, map(str, row))}",
                remedy=f"rename the column that holds it, for example {name}.rename_column(OLD, {key!r})",
            )
    given["answers"] = [answers] if isinstance(answers, str) else answers
    options = given.get("options") or []
    free = "qa" if not options else "scq" if len(given["answers"]) == 1 else "mcq"
    split = "dev" if name.startswith("eval") else "train"
    defaults = {
        "id": str(number), "dataset": "rows", "split": split, "relation": "factual", "format": free, "context": "",
    }  # fmt: skip
    checked = check_row({**defaults, **given})
    if isinstance(checked, str):
        raise UserError(f"{name}, row {number}: {checked}")
    return checked
