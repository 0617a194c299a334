"""WIQA's question files: one question a line, with its paragraph, its type and the length of its path."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from d2e_sft.util.errors import UserError
from eval.systems.json_file import expect_list, expect_object, expect_text, read_json_lines, shown
from eval.systems.wiqa.labels import LABELS, Label

TYPES = {
    "INPARA_EFFECT": "in-paragraph",
    "EXOGENOUS_EFFECT": "out-of-paragraph",
    "OUTOFPARA_DISTRACTOR": "no effect",
}
_STEM = re.compile(r"suppose (.+?) happens, how will it affect (.+?)\s*[.?]?\s*", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class Question:
    """One question.

    Attributes:
        steps: sentences of the paragraph.
        cause, effect: the two changes in the stem; empty where it has another form.
        type: a key of `TYPES`.
        hops: edges of the path in the influence graph; 0 where there is none.
    """

    id: str
    stem: str
    steps: tuple[str, ...] = field(repr=False)
    answer: Label
    type: str
    hops: int
    paragraph: str
    graph: str
    cause: str
    effect: str


def read_questions(path: Path) -> list[Question]:
    """Read a question file in the official format.

    Raises:
        UserError: the file is damaged; line, field, value and expectation are named.
    """
    questions = [_question(row, place) for place, row in read_json_lines(path)]
    if not questions:
        raise UserError(f"{path}: holds no question; expected WIQA's questions, one a line")
    seen: set[str] = set()
    for question in questions:
        if question.id in seen:
            raise UserError(f"{path}: metadata.ques_id {question.id!r} is given twice; expected each once")
        seen.add(question.id)
    return questions


def split_stem(stem: str) -> tuple[str, str]:
    """The cause and the effect that a stem asks about; two empty texts where it has another form."""
    found = _STEM.fullmatch(stem.strip())
    return (found[1].strip(), found[2].strip()) if found else ("", "")


def _question(row: dict[str, Any], place: str) -> Question:
    question = expect_object(row.get("question"), f"{place}, question")
    metadata = expect_object(row.get("metadata"), f"{place}, metadata")
    stem = expect_text(question, "stem", f"{place}, question")
    steps = expect_list(question.get("para_steps"), f"{place}, question.para_steps")
    if not all(isinstance(step, str) for step in steps):
        raise UserError(f"{place}, question.para_steps: got {shown(steps)}; expected a list of texts")
    answer = question.get("answer_label")
    if answer not in LABELS:
        raise UserError(f"{place}, question.answer_label: got {shown(answer)}; expected one of {', '.join(LABELS)}")
    kind, length = metadata.get("question_type"), metadata.get("path_len")
    if kind not in TYPES:
        raise UserError(f"{place}, metadata.question_type: got {shown(kind)}; expected one of {', '.join(TYPES)}")
    if type(length) is not int or length < 0:
        raise UserError(f"{place}, metadata.path_len: got {shown(length)}; expected a whole number from 0 on")
    names = [expect_text(metadata, name, f"{place}, metadata") for name in ("ques_id", "para_id", "graph_id")]
    cause, effect = split_stem(stem)
    return Question(
        id=names[0],
        stem=stem,
        steps=tuple(step.strip() for step in steps if step.strip()),
        answer=answer,
        type=kind,
        hops=max(length - 1, 0),  # the file counts nodes
        paragraph=names[1],
        graph=names[2],
        cause=cause,
        effect=effect,
    )
