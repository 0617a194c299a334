"""Files of predictions: the official tab-separated form, and JSON lines.

The official script reads lines of `target`, `prediction` and `input`, mostly with a number before them and a first
line of names; they are about the gold file's questions in its order. Here a line is matched to its question by its
input, so that a part of the questions can be scored. JSON lines have `prediction` and `line`, the question's line;
without `line` they are one for each question, in order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from d2e_sft.util.errors import UserError
from eval.systems.boxes.gold import Question
from eval.systems.flat.lines import read_lines, refuse_unfilled, whole
from eval.systems.json_file import json_lines, shown

_HEADER = "\ttarget\tprediction\tinput"
_TSV_REMEDY = (
    "expected the official columns: a number, target, prediction and input, parted by tabs, where input ends in the "
    "description and 'Box N contains' (few_shot) or 'Box N' (t5)"
)
_JSON_REMEDY = (
    'expected {"line": 12, "prediction": "the drug and the plate"}, or the lines of all questions without "line"'
)
_STATEMENT = re.compile(r"(?P<description>.+\.)\s+(?P<box>(?:Box|Container) \w+)(?: contains)?(?: \.)?", re.DOTALL)
Answers = dict[int, str | None]  # the question's line → what is predicted


def official_tsv(questions: Sequence[Question], predictions: Sequence[str | None]) -> str:
    """A file's text in the official form; tabs and line ends within a prediction become blanks."""
    lines = [_HEADER]
    for number, (question, text) in enumerate(zip(questions, predictions, strict=True)):
        prediction = re.sub(r"[\t\n\r\v\f\x1c-\x1e\x85\u2028\u2029]+", " ", text or "")
        lines.append(f"{number}\t{question.answer}\t{prediction}\t{_input(question)}")
    return "".join(f"{line}\n" for line in lines)


def _input(question: Question) -> str:
    if question.form == "t5":
        return f"{question.description} {question.box} ."
    # The official files have the line end of the prompt as a backslash and an n.
    return f"Description: {question.description}\\nStatement: {question.box} contains"


def write_predictions(questions: Sequence[Question], predictions: Sequence[str | None]) -> str:
    """The text of a file of JSON lines; null where the model said nothing of the box."""
    return json_lines({"line": q.line, "prediction": p} for q, p in zip(questions, predictions, strict=True))


def read_predictions(path: Path, questions: Sequence[Question]) -> tuple[list[Question], list[str | None]]:
    """The questions that are predicted, in gold order, and the predictions.

    Raises:
        UserError: a damaged line, a question that is unknown or predicted twice, another gold answer than the gold
            file's, or too few or too many predictions without their lines.
    """
    lines = _lines(path)
    table = next((line for line in lines if line.strip()), "").count("\t") > 1
    found = _read_tsv(path, lines, questions) if table else _read_json(path, questions)
    if not found:
        raise UserError(f"{path}: holds 0 predictions; the gold has {len(questions)} questions", _TSV_REMEDY)
    chosen = [question for question in questions if question.line in found]
    return chosen, [found[question.line] for question in chosen]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text ({error})", "expected JSON lines or tab-separated values") from None


def _read_tsv(path: Path, lines: Sequence[str], questions: Sequence[Question]) -> Answers:
    known = {(_plain(question.description), _plain(question.box)): question for question in questions}
    found: Answers = {}
    for place, target, prediction, asked in _table(path, lines):
        question = _question(asked, place, known)
        if _plain(target) != _plain(question.answer):
            raise UserError(
                f"{place}: its target is {target!r}; line {question.line} of the gold file has {question.answer!r}",
                remedy="name the gold file that was predicted: --gold FILE, --set split=NAME",
            )
        if question.line in found:
            raise UserError(f"{place}: line {question.line} of the gold file is predicted twice", _TSV_REMEDY)
        found[question.line] = prediction or None
    return found


def _table(path: Path, lines: Sequence[str]) -> Iterator[tuple[str, str, str, str]]:
    """(place, target, prediction, input) of each line but the names."""
    for number, line in enumerate(lines, start=1):
        cells = line.removesuffix("\r").split("\t")
        # As the official script: a line whose number is empty, as of the names, is passed over.
        if not line.strip() or (len(cells) == 4 and not cells[0]):
            continue
        place = f"{path}, line {number}"
        if len(cells) not in (3, 4):
            raise UserError(f"{place}: has {len(cells)} columns: {shown(line)}", _TSV_REMEDY)
        target, prediction, asked = cells[-3:]
        yield place, target, prediction, asked


def _question(asked: str, place: str, known: dict[tuple[str, str], Question]) -> Question:
    """The question of an input, which may be a whole prompt with instruction and demonstrations."""
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


def _read_json(path: Path, questions: Sequence[Question]) -> Answers:
    found: Answers = {}
    own = {question.line for question in questions}
    numbered = False
    for place, (where, row) in enumerate(read_lines(path)):
        prediction = _prediction(row, where)
        numbered = numbered or "line" in row
        key = row.get("line", questions[place].line if place < len(questions) else None)
        key = whole(key, "line", where) if isinstance(key, str) else key  # CSV has texts alone
        if not isinstance(key, int) or key not in own:
            raise UserError(f"{where}: is about line {key}, which the gold file has no question in", _JSON_REMEDY)
        if key in found:
            raise UserError(f"{where}: line {key} is predicted twice", _JSON_REMEDY)
        found[key] = prediction
    refuse_unfilled(path, found.values(), "prediction")
    if not numbered and len(found) != len(questions):
        raise UserError(
            f"{path}: holds {len(found)} predictions; the gold has {len(questions)} questions", _JSON_REMEDY
        )
    return found


def _prediction(row: dict[str, Any], where: str) -> str | None:
    if "prediction" not in row:
        raise UserError(f"{where}: not a prediction: {shown(row)}", _JSON_REMEDY)
    prediction = row["prediction"]
    if not (prediction is None or isinstance(prediction, str)):
        raise UserError(f"{where}: prediction is {prediction!r}; expected text or null", _JSON_REMEDY)
    return prediction
