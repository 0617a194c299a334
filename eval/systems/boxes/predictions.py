"""Predictions on disk: JSON lines with `prediction`, the text about the box, and `line`, the question's line.

Without `line` they are one for each question, in the order of the gold file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from d2e_sft.util.errors import UserError
from eval.systems.boxes.gold import Question
from eval.systems.json_file import read_json_lines, shown

_REMEDY = 'expected {"line": 12, "prediction": "the drug and the plate"}, or the lines of all questions without "line"'


def as_lines(questions: Sequence[Question], predictions: Sequence[str | None]) -> str:
    """The file's text; null where the model said nothing of the box."""
    rows = ({"line": q.line, "prediction": p} for q, p in zip(questions, predictions, strict=True))
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def read_predictions(path: Path, questions: Sequence[Question]) -> tuple[list[Question], list[str | None]]:
    """The questions that are predicted, in gold order, and the predictions.

    Raises:
        UserError: a damaged line, a line number that is unknown or given twice, or too few or too many predictions.
    """
    found: dict[int, str | None] = {}
    rows = list(read_json_lines(path))
    own = {question.line for question in questions}
    numbered = False
    for place, (where, row) in enumerate(rows):
        if "prediction" not in row:
            raise UserError(f"{where}: not a prediction: {shown(row)}", _REMEDY)
        prediction = row["prediction"]
        if not (prediction is None or isinstance(prediction, str)):
            raise UserError(f"{where}: prediction is {prediction!r}; expected text or null", _REMEDY)
        numbered = numbered or "line" in row
        key = row.get("line", questions[place].line if place < len(questions) else None)
        if not isinstance(key, int) or key not in own:
            raise UserError(f"{where}: is about line {key}, which the gold file has no question in", _REMEDY)
        if key in found:
            raise UserError(f"{where}: line {key} is predicted twice", _REMEDY)
        found[key] = prediction
    if not found or (not numbered and len(found) != len(questions)):
        raise UserError(f"{path}: holds {len(found)} predictions; the gold has {len(questions)} questions", _REMEDY)
    chosen = [question for question in questions if question.line in found]
    return chosen, [found[question.line] for question in chosen]
