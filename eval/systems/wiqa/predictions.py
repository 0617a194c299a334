"""Files of predictions for WIQA: one answer a line.

Ours are `{"ques_id": …, "answer": "more"}`. The lines of the official evaluator are read, too: the predicted label is
`explanation.de`, and `orig_question` is the question (its own example says `orig_answer`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from d2e_sft.util.errors import UserError, did_you_mean
from eval.systems.json_file import read_json_lines, shown
from eval.systems.wiqa.labels import LABELS, Label, label_of
from eval.systems.wiqa.questions import Question

Missing = Literal["error", "leave_out"]
_IDS = (
    ("ques_id",),
    ("id",),
    ("metadata", "ques_id"),
    ("orig_question", "metadata", "ques_id"),
    ("orig_answer", "metadata", "ques_id"),
)
_ANSWERS = (("answer",), ("explanation", "de"), ("answer_label",))


def read_predictions(path: Path, gold: Sequence[Question], missing: Missing) -> dict[str, Label | None]:
    """Question id → predicted label; None is an answer that could not be read, which is wrong.

    Raises:
        UserError: a line is damaged, or the file does not fit the questions.
    """
    known = {question.id for question in gold}
    found: dict[str, Label | None] = {}
    for place, row in read_json_lines(path):
        name, label = _id(row, place), _label(row, place)
        if name not in known:
            raise UserError(
                f"{place}: question {name!r} is not in the gold file.{did_you_mean(name, known)}",
                remedy="name the file of questions that were answered as --gold",
            )
        if name in found:
            raise UserError(f"{place}: question {name!r} is answered twice; expected one line each")
        found[name] = label
    lacking = [question.id for question in gold if question.id not in found]
    if not found or (lacking and missing == "error"):
        raise UserError(
            f"{path}: lacks an answer to {lacking[0]!r} ({len(lacking)} of {len(gold)} are missing)",
            remedy="answer all, or score what is there alone: --set missing=leave_out",
        )
    return found


def _id(row: dict[str, Any], place: str) -> str:
    for keys in _IDS:
        value = _at(row, keys)
        if isinstance(value, str) and value:
            return value
    raise UserError(f"{place}: got the fields {', '.join(row) or 'none'}; expected ques_id, the question's id")


def _label(row: dict[str, Any], place: str) -> Label | None:
    for keys in _ANSWERS:
        if keys[0] in row:
            value = _at(row, keys)
            label = label_of(value) if isinstance(value, str) else None
            if label is None and value is not None:
                raise UserError(
                    f"{place}, {'.'.join(keys)}: got {shown(value)}; expected one of {', '.join(LABELS)}, or null for "
                    "an answer that could not be read"
                )
            return label
    raise UserError(f"{place}: got the fields {', '.join(row)}; expected answer, one of {', '.join(LABELS)}")


def _at(row: Any, keys: Iterable[str]) -> Any:
    for key in keys:
        row = row.get(key) if isinstance(row, Mapping) else None
    return row


def write_predictions(answers: Mapping[str, Label | None]) -> str:
    """The content of such a file."""
    rows = ({"ques_id": name, "answer": label} for name, label in answers.items())
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
