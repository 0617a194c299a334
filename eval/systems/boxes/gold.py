"""The published files, predictions for them, and what a text says a box contains, as the paper's scorer reads it.

Questions are about one box each, in runs of as many as there are boxes. Predictions are JSON lines with `prediction`,
the text about the box, and `line`, the question's line; without `line` they are one for each question, in the order of
the gold file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeVar

from d2e_sft.util.encrypted_zip import PASSWORD, member_names, read_encrypted
from d2e_sft.util.errors import UserError
from eval.systems.json_file import json_lines, read_json_lines, shown

_MASK = "<extra_id_0>"
P = TypeVar("P", Path, PurePosixPath)
_MASKED = re.compile(rf"(?P<description>.+\.) (?P<box>(?:Box|Container) \w+)(?: contains)? {_MASK} \.", re.DOTALL)
EMPTY = ("nothing", "is empty")
_NEXT_BOX = r",?\s*(?:and\s+)?(?:Box|Container)\s+\w+\s+(?:contains|is)\b"
_REMEDY = "expected a file in the published format; d2e data boxes makes one"
_PREDICTION_REMEDY = (
    'expected {"line": 12, "prediction": "the drug and the plate"}, or the lines of all questions without "line"'
)


@dataclass(frozen=True)
class Question:
    """What does a box contain after some operations?

    Attributes:
        line: of the file, from 1.
        scenario: `sample_id`.
        description: the initial state and the operations.
        box: `Box 0`.
        answer: the gold text, such as `the drug and the plate`, or `nothing`, or `is empty`.
        numops: operations that changed this box.
        initial: its contents at the start.
    """

    line: int
    scenario: int
    description: str
    box: str
    answer: str
    numops: int
    initial: frozenset[str]

    @property
    def contents(self) -> frozenset[str]:
        """The gold contents."""
        return contents_of(self.answer)

    @property
    def changed(self) -> bool:
        """Whether the contents are others than at the start."""
        return self.contents != self.initial


def contents_of(text: str) -> frozenset[str]:
    """The things that a text lists: by commas and `and`, without `the` and the full stop, letters as they are.

    `nothing` and `is empty` are the empty set. So is an empty text, which `right` tells from them.
    """
    text = said(text)
    if text in EMPTY:
        return frozenset()
    parts = (part.strip().removeprefix("the ").removeprefix("The ").strip() for part in re.split(r",|\band\b", text))
    return frozenset(part for part in parts if part)


def right(prediction: str | None, gold: str) -> bool:
    """Whether a prediction names the things that the gold text names; of an empty box, that it is empty."""
    if prediction is None:
        return False
    if not contents_of(gold):
        return said(prediction) in EMPTY
    return contents_of(prediction) == contents_of(gold)


def said(text: str) -> str:
    """The text without its full stop and without a leading `contains`."""
    return text.strip().removesuffix(".").strip().removeprefix("contains ").strip()


def read_all(reply: str, boxes: Sequence[str]) -> list[str | None]:
    """What a reply says of each box, at its first mention; None where it says nothing."""
    return [_about(reply, box) for box in boxes]


def read_one(reply: str, box: str) -> str | None:
    """What a reply to a question about one box says: behind the box's name, else its first line."""
    found = _about(reply, box)
    if found is not None:
        return found
    lines = [line.strip() for line in reply.splitlines() if line.strip()]
    # A reply about another box is no answer about this one.
    return None if not lines or re.match(r"(?:Box|Container)\s+\w+\s+(?:contains|is)\b", lines[0]) else lines[0]


def _about(reply: str, box: str) -> str | None:
    number = re.escape(box).replace(r"\ ", r"\s+")
    match = re.search(rf"\b{number}\s+(contains|is empty)\b(.*?)(?={_NEXT_BOX}|\.|\n|$)", reply)
    if match is None:
        return None
    return "is empty" if match[1] == "is empty" else match[2].strip().rstrip(",") or None


def read_questions(path: Path, *, split: str, password: str = PASSWORD) -> list[Question]:
    """Read a file of the published format.

    Args:
        path: a JSONL file, a zip archive, or a folder that holds one or the other.
        split: which file of a folder or archive: the one whose name begins so; in an archive also with its folder,
            as `few_shot/test`.

    Raises:
        UserError: no such file, or a row that is not of the format; file and line are named.
    """
    name, text = _read(path, split, password)
    lines = enumerate(text.split("\n"), start=1)
    questions = [_question(name, number, line) for number, line in lines if line.strip()]
    if not questions:
        raise UserError(f"{name}: holds no question; expected rows of Boxes", "generate it: d2e data boxes OUT.zip")
    return questions


def states(questions: Sequence[Question]) -> list[list[Question]]:
    """The questions about one state each: those that follow one another and have one description."""
    groups: list[list[Question]] = []
    for question in questions:
        if groups and (groups[-1][0].scenario, groups[-1][0].description) == (question.scenario, question.description):
            groups[-1].append(question)
        else:
            groups.append([question])
    return groups


def _read(path: Path, split: str, password: str) -> tuple[str, str]:
    if path.is_dir():
        found = sorted(p for p in path.iterdir() if p.name.startswith(split) and p.suffix == ".jsonl")
        found = found or sorted(path.glob("*.zip"))
        path = _only(path, split, found)
    if path.suffix != ".zip":
        try:
            return str(path), path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"{path}: not UTF-8 ({error})", "expected a JSONL file, or a .zip archive") from None
    names = [PurePosixPath(name) for name in member_names(path)]
    member = _only(path, split, [name for name in names if f"/{split}" in f"/{name}" and name.suffix == ".jsonl"])
    return f"{path}: {member}", read_encrypted(path, str(member), password)


def _only(where: Path, split: str, found: Sequence[P]) -> P:
    if len(found) == 1:
        return found[0]
    held = f"several: {', '.join(map(str, found))}" if found else "none"
    raise UserError(
        f"{where}: expected one file of Boxes whose name begins with {split!r}; found {held}",
        remedy="name the file itself (--data FILE) or more of it (--set split=FOLDER/test); d2e data boxes makes one",
    )


def _question(name: str, number: int, line: str) -> Question:
    try:
        row = json.loads(line)
        masked, answer = row["sentence_masked"], row["masked_content"]
        scenario, numops = int(row["sample_id"]), int(row["numops"])
        match = _MASKED.fullmatch(masked)
        if match is None:
            raise ValueError(f"sentence_masked ends {masked[-60:]!r}; expected '… Box N contains {_MASK} .'")
        if not answer.startswith(_MASK):
            raise ValueError(f"masked_content is {answer!r}; expected it to begin with {_MASK}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"lacks {error}" if isinstance(error, KeyError) else str(error)
        raise UserError(f"{name}, line {number}: not a question of Boxes: {what}", _REMEDY) from None
    description, box = match["description"], match["box"]
    initial = _initial(description, box)
    if initial is None:
        raise UserError(f"{name}, line {number}: its first sentence does not say what {box} holds", _REMEDY)
    return Question(number, scenario, description, box, answer.removeprefix(_MASK).strip(), numops, initial)


def _initial(description: str, box: str) -> frozenset[str] | None:
    for clause in clauses(description):
        if clause.startswith((f"{box} contains", f"{box} is empty")):
            return contents_of(clause.removeprefix(box).strip())
        if clause.endswith(f" in {box}"):
            things = re.sub(r" (is|are)? ?in$", "", clause.removesuffix(f" {box}"))
            return contents_of("nothing" if things.lower() == "there is nothing" else things)
    return None


def clauses(description: str) -> list[str]:
    """What the first sentence says of each box."""
    return description.partition(". ")[0].removesuffix(".").split(", ")


def mentions(text: Iterable[str], box: str) -> list[str]:
    """The texts that name the box."""
    return [part for part in text if re.search(rf"\b{re.escape(box)}\b", part)]


def write_predictions(questions: Sequence[Question], predictions: Sequence[str | None]) -> str:
    """A file's text; null where the model said nothing of the box."""
    return json_lines({"line": q.line, "prediction": p} for q, p in zip(questions, predictions, strict=True))


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
            raise UserError(f"{where}: not a prediction: {shown(row)}", _PREDICTION_REMEDY)
        prediction = row["prediction"]
        if not (prediction is None or isinstance(prediction, str)):
            raise UserError(f"{where}: prediction is {prediction!r}; expected text or null", _PREDICTION_REMEDY)
        numbered = numbered or "line" in row
        key = row.get("line", questions[place].line if place < len(questions) else None)
        if not isinstance(key, int) or key not in own:
            raise UserError(
                f"{where}: is about line {key}, which the gold file has no question in", _PREDICTION_REMEDY
            )
        if key in found:
            raise UserError(f"{where}: line {key} is predicted twice", _PREDICTION_REMEDY)
        found[key] = prediction
    if not found or (not numbered and len(found) != len(questions)):
        raise UserError(
            f"{path}: holds {len(found)} predictions; the gold has {len(questions)} questions", _PREDICTION_REMEDY
        )
    chosen = [question for question in questions if question.line in found]
    return chosen, [found[question.line] for question in chosen]
