"""WIQA's files: questions with their labels, types and paths, and predictions, one a line.

Our predictions are `{"ques_id": …, "answer": "more"}`. The lines of the official evaluator are read, too: the
predicted label is `explanation.de`, and `orig_question` is the question (its own example says `orig_answer`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from d2e_sft.util.errors import UserError, did_you_mean
from eval.systems.flat.lines import read_lines
from eval.systems.json_file import expect_list, expect_object, expect_text, json_lines, read_json_lines, shown

Label = Literal["more", "less", "no_effect"]
LABELS: tuple[Label, ...] = ("more", "less", "no_effect")
# +1: the cause brings the effect about (the paper's "correct"), -1: its opposite, 0: nothing.
POLARITY: dict[Label, int] = {"more": 1, "less": -1, "no_effect": 0}
OF_POLARITY: dict[int, Label] = {polarity: label for label, polarity in POLARITY.items()}
# What the official code takes for a label, underscores and letter case aside; A, B and C are the choices' letters.
_NAMES: dict[str, Label] = {
    **dict.fromkeys(("more", "+", "positive", "results in", "correct", "correct effect", "a"), "more"),
    **dict.fromkeys(
        ("less", "-", "not results in", "opposite", "opp", "results in opp", "opp effect", "opposite effect", "b"),
        "less",
    ),
    **dict.fromkeys(("no effect", "none", ".", "c"), "no_effect"),
}
TYPES = {
    "INPARA_EFFECT": "in-paragraph",
    "EXOGENOUS_EFFECT": "out-of-paragraph",
    "OUTOFPARA_DISTRACTOR": "no effect",
}
_STEM = re.compile(r"suppose (.+?) happens, how will it affect (.+?)\s*[.?]?\s*", re.IGNORECASE | re.DOTALL)
Missing = Literal["error", "leave_out"]
# Question id → predicted label; None could not be read and is wrong.
Answers = Mapping[str, Label | None]
_IDS = (
    ("ques_id",),
    ("id",),
    ("metadata", "ques_id"),
    ("orig_question", "metadata", "ques_id"),
    ("orig_answer", "metadata", "ques_id"),
)
_ANSWERS = (("answer",), ("explanation", "de"), ("answer_label",))


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


def label_of(text: str) -> Label | None:
    """The label that a text names; None where it names none."""
    return _NAMES.get(text.casefold().replace("_", " ").strip())


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


def read_predictions(path: Path, gold: Sequence[Question], missing: Missing) -> dict[str, Label | None]:
    """Question id → predicted label; None is an answer that could not be read, which is wrong.

    Raises:
        UserError: a line is damaged, or the file does not fit the questions.
    """
    known = {question.id for question in gold}
    found: dict[str, Label | None] = {}
    for place, row in read_lines(path):
        name, label = question_id(row, place), _label(row, place)
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


def question_id(row: dict[str, Any], place: str) -> str:
    """The question that a line is about.

    Raises:
        UserError: it does not say.
    """
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
    return json_lines({"ques_id": name, "answer": label} for name, label in answers.items())
