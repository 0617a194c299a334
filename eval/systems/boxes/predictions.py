"""Files of predictions: the official tab-separated form, and JSON lines.

The official columns are a number, `target`, `prediction` and `input`, about the gold file's questions in order. Here
the input says which question a line is about, so a file may predict only some. JSON lines have `prediction` and
`line`, the question's line; without `line` there is one for each question, in order.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from d2e_sft.util.errors import UserError, shortened
from eval.systems.boxes.gold import Question
from eval.systems.files import json_lines, read_text
from eval.systems.flat.lines import FlatRow, read_lines, refuse_unfilled

_HEADER = "\ttarget\tprediction\tinput"
_TSV_REMEDY = (
    "expected the official columns: a number, target, prediction and input, separated by tabs; input ends in the "
    "description and 'Box N contains' (few_shot) or 'Box N' (t5)"
)
_JSON_REMEDY = 'expected {"line": 12, "prediction": "the drug and the plate"}, or all questions without "line"'
_STATEMENT = re.compile(r"(?P<description>.+\.)\s+(?P<box>(?:Box|Container) \w+)(?: contains)?(?: \.)?", re.DOTALL)
Predicted = dict[int, str | None]  # the question's line → what is predicted


class PredictedLine(FlatRow):
    """One JSON line, or one line of CSV."""

    prediction: str | None
    line: int | None = None


def official_tsv(questions: Sequence[Question], predictions: Sequence[str | None]) -> str:
    """Return the text of a file in the official form; tabs and line ends in a prediction become blanks."""
    lines = [_HEADER]
    for number, (question, text) in enumerate(zip(questions, predictions, strict=True)):
        prediction = re.sub(r"[\t\n\r\v\f\x1c-\x1e\x85\u2028\u2029]+", " ", text or "")
        # The official files have the line end of the prompt as a backslash and an n.
        asked = f"Description: {question.description}\\nStatement: {question.box} contains"
        if question.form == "t5":
            asked = f"{question.description} {question.box} ."
        lines.append(f"{number}\t{question.answer}\t{prediction}\t{asked}")
    return "".join(f"{line}\n" for line in lines)


def write_predictions(questions: Sequence[Question], predictions: Sequence[str | None]) -> str:
    """Return the text of a file of JSON lines; null if the model said nothing about the box."""
    return json_lines({"line": q.line, "prediction": p} for q, p in zip(questions, predictions, strict=True))


def read_predictions(path: Path, questions: Sequence[Question]) -> tuple[list[Question], list[str | None]]:
    """Return the questions that are predicted, in gold order, and their predictions.

    Raises UserError if a line is damaged, unknown, predicted twice or about other gold, or lines are missing.
    """
    lines = read_text(path).split("\n")
    is_table = next((line for line in lines if line.strip()), "").count("\t") > 1
    found = _read_tsv(path, lines, questions) if is_table else _read_json(path, questions)
    if not found:
        raise UserError(f"{path}: holds 0 predictions; the gold has {len(questions)} questions", _TSV_REMEDY)
    chosen = [question for question in questions if question.line in found]
    return chosen, [found[question.line] for question in chosen]


def _read_tsv(path: Path, lines: Sequence[str], questions: Sequence[Question]) -> Predicted:
    known = {(_plain(question.description), _plain(question.box)): question for question in questions}
    found: Predicted = {}
    for number, line in enumerate(lines, start=1):
        cells = line.removesuffix("\r").split("\t")
        # As in the official script: a line with an empty number, like the header, is passed over.
        if not line.strip() or (len(cells) == 4 and not cells[0]):
            continue
        place = f"{path}, line {number}"
        if len(cells) not in (3, 4):
            raise UserError(f"{place}: has {len(cells)} columns: {shortened(line)}", _TSV_REMEDY)
        target, prediction, asked = cells[-3:]
        question = _question(asked, place, known)
        if _plain(target) != _plain(question.answer):
            raise UserError(
                f"{place}: its target is {target!r}; gold line {question.line} has {question.answer!r}",
                remedy="name the gold file that was predicted: --gold FILE, --set split=NAME",
            )
        if question.line in found:
            raise UserError(f"{place}: gold line {question.line} is predicted twice", _TSV_REMEDY)
        found[question.line] = prediction or None
    return found


def _question(asked: str, place: str, known: dict[tuple[str, str], Question]) -> Question:
    """Return the question of an input, which may be a whole prompt with instruction and demonstrations."""
    text = asked.strip('"').replace('""', '"').rpartition("Description: ")[2]
    match = _STATEMENT.fullmatch(text.replace("\\nStatement:", "").replace(" Statement:", "").strip())
    if match is None:
        raise UserError(f"{place}: its input ends in {text[-60:]!r}", _TSV_REMEDY)
    description, box = _plain(match["description"]), _plain(match["box"])
    while description:
        if (description, box) in known:
            return known[description, box]
        description = description.partition(". ")[2]
    raise UserError(f"{place}: the gold file has no such question: …{asked[-60:]!r}", _TSV_REMEDY)


def _plain(text: str) -> str:
    return " ".join(text.replace("Container", "Box").split()).strip(". ")


def _read_json(path: Path, questions: Sequence[Question]) -> Predicted:
    own = {question.line for question in questions}
    found: Predicted = {}
    numbered = False
    for place, (where, row) in enumerate(read_lines(path, PredictedLine)):
        numbered = numbered or row.line is not None
        line = row.line if row.line is not None else questions[place].line if place < len(questions) else None
        if line not in own:
            raise UserError(f"{where}: is about line {line}, which the gold file has no question in", _JSON_REMEDY)
        if line in found:
            raise UserError(f"{where}: line {line} is predicted twice", _JSON_REMEDY)
        found[line] = row.prediction
    refuse_unfilled(path, found.values(), "prediction")
    if not numbered and len(found) != len(questions):
        raise UserError(
            f"{path}: holds {len(found)} predictions; the gold has {len(questions)} questions", _JSON_REMEDY
        )
    return found
