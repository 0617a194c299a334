"""Boxes' files: questions about one box each, in runs of as many as there are boxes, and predictions.

There are two forms of questions. In the form for prompting (`few_shot`) an empty box `contains nothing`, and the
answer is what follows `contains`. In the form for fine-tuning T5 (`t5`) it `is empty`, and the answer begins with
`contains` or `is`.

Predictions are the official tab-separated form, or JSON lines. The official columns are a number, `target`,
`prediction` and `input`, about the gold file's questions in order. Here the input says which question a line is
about, so a file may predict only some. JSON lines have `prediction` and `line`, the question's line; without `line`
there is one for each question, in order.
"""

import itertools
import random
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, Literal, Self, TypeVar

from pydantic import model_validator

from d2e_sft.util.encrypted_zip import PASSWORD, member_names, read_encrypted
from d2e_sft.util.errors import UserError, shortened
from eval.systems.boxes.answers import contents_of
from eval.systems.reading import (
    FlatRow,
    GoldRow,
    checked,
    json_lines,
    json_lines_of,
    read_lines,
    read_text,
    refuse_unfilled,
)

MASK = "<extra_id_0>"
P = TypeVar("P", Path, PurePosixPath)
_MASKED = re.compile(rf"(?P<description>.+\.) (?P<box>(?:Box|Container) \w+)(?P<verb> contains)? {MASK} \.", re.S)


class BoxQuestion(GoldRow):
    """What does a box contain after some operations?

    `line` is counted from 1, `sample_id` is the scenario, and `numops` counts operations that changed this box.
    """

    line: int
    sample_id: int
    sentence_masked: str
    masked_content: str
    numops: int

    @model_validator(mode="after")
    def _has_the_published_form(self) -> Self:
        if not self.masked_content.startswith(MASK):
            raise ValueError(f"masked_content is {self.masked_content!r}; expected it to begin with {MASK}")
        if _initial(self.description, self.box) is None:
            raise ValueError(f"the first sentence of sentence_masked does not say what {self.box} holds")
        return self

    @cached_property
    def _parts(self) -> re.Match[str]:
        if parts := _MASKED.fullmatch(self.sentence_masked):
            return parts
        raise ValueError(f"sentence_masked ends {self.sentence_masked[-60:]!r}; expected '… Box N contains {MASK} .'")

    @property
    def description(self) -> str:
        """The initial state and the operations."""
        return self._parts["description"]

    @property
    def box(self) -> str:
        """`Box 0`."""
        return self._parts["box"]

    @property
    def form(self) -> Literal["few_shot", "t5"]:
        return "few_shot" if self._parts["verb"] else "t5"

    @property
    def answer(self) -> str:
        """The gold text, such as `the drug and the plate`, or `nothing`, or `is empty`."""
        return self.masked_content.removeprefix(MASK).strip()

    @cached_property
    def changed(self) -> bool:
        """Whether the contents differ from those at the start."""
        return contents_of(self.answer) != _initial(self.description, self.box)


def _initial(description: str, box: str) -> frozenset[str] | None:
    """Return what a box holds at the start; None if the first sentence does not say it."""
    for clause in clauses(description):
        if clause.startswith((f"{box} contains", f"{box} is empty")):
            return contents_of(clause.removeprefix(box).strip())
        if clause.endswith(f" in {box}"):
            things = re.sub(r" (is|are)? ?in$", "", clause.removesuffix(f" {box}"))
            return contents_of("nothing" if things.lower() == "there is nothing" else things)
    return None


def clauses(description: str) -> list[str]:
    return description.partition(". ")[0].removesuffix(".").split(", ")


def mentions(texts: Iterable[str], box: str) -> list[str]:
    return [text for text in texts if re.search(rf"\b{re.escape(box)}\b", text)]


def read_questions(path: Path, *, split: str, password: str = PASSWORD) -> list[BoxQuestion]:
    """Read a JSONL file of the published format, from a folder or zip archive.

    `split` is the beginning of the file's name there; in an archive its folder may come first, as in `few_shot/test`.
    UserError, with file and line, if there is no such file, or a row does not have the format.
    """
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if p.name.startswith(split) and p.suffix == ".jsonl")
        path = _only(path, split, files or sorted(path.glob("*.zip")))
    name = str(path)
    if path.suffix == ".zip":
        members = [member for member in map(PurePosixPath, member_names(path)) if member.suffix == ".jsonl"]
        member = _only(path, split, [member for member in members if f"/{split}" in f"/{member}"])
        name, text = f"{path}: {member}", read_encrypted(path, str(member), password)
    else:
        text = read_text(path)
    questions = []
    for place, row in json_lines_of(text, name, dict[str, Any]):
        line = int(place.rpartition(" ")[2])
        questions.append(checked(BoxQuestion, {**row, "line": line}, f"{place}: not a question of Boxes"))
    if not questions:
        raise UserError(f"{name}: holds no question; expected rows of Boxes", "generate it: d2e data boxes OUT.zip")
    return questions


def _only(folder: Path, split: str, files: Sequence[P]) -> P:
    if len(files) == 1:
        return files[0]
    names = f"several: {', '.join(map(str, files))}" if files else "none"
    raise UserError(
        f"{folder}: expected one file of Boxes whose name begins with {split!r}; found {names}",
        remedy="name the file itself (--data FILE) or more of it (--set split=FOLDER/test); d2e data boxes makes one",
    )


def states(questions: Sequence[BoxQuestion]) -> list[list[BoxQuestion]]:
    """Group consecutive questions about one state, which have one description."""
    return [list(group) for _, group in itertools.groupby(questions, key=lambda q: (q.sample_id, q.description))]


def balanced(groups: Sequence[Sequence[BoxQuestion]], count: int, seed: int) -> list[Sequence[BoxQuestion]]:
    """Draw `count` states for each number of operations on a box, and return them in order (footnote 8 of the paper).

    If fewer states have such a box, all of them are taken. A state that is drawn twice is returned once.
    """
    rng = random.Random(f"{seed}/boxes/balanced")
    chosen: set[int] = set()
    for numops in sorted({question.numops for group in groups for question in group}):
        fitting = [place for place, group in enumerate(groups) if any(q.numops == numops for q in group)]
        chosen.update(rng.sample(fitting, min(count, len(fitting))))
    return [groups[place] for place in sorted(chosen)]


_TSV_REMEDY = (
    "expected the official columns: a number, target, prediction and input, separated by tabs; input ends in the "
    "description and 'Box N contains' (few_shot) or 'Box N' (t5)"
)
_JSON_REMEDY = 'expected {"line": 12, "prediction": "the drug and the plate"}, or all questions without "line"'
_STATEMENT = re.compile(r"(?P<description>.+\.)\s+(?P<box>(?:Box|Container) \w+)(?: contains)?(?: \.)?", re.DOTALL)
Predicted = dict[int, str | None]  # the question's line → what is predicted


class BoxLine(FlatRow):
    prediction: str | None
    line: int | None = None


def official_tsv(questions: Sequence[BoxQuestion], predictions: Sequence[str | None]) -> str:
    """Return the text of a file in the official form; tabs and line ends in a prediction become blanks."""
    lines = ["\ttarget\tprediction\tinput"]
    for number, (question, text) in enumerate(zip(questions, predictions, strict=True)):
        prediction = re.sub(r"[\t\n\r\v\f\x1c-\x1e\x85\u2028\u2029]+", " ", text or "")
        # The official files have the line end of the prompt as a backslash and an n.
        prompt = f"Description: {question.description}\\nStatement: {question.box} contains"
        if question.form == "t5":
            prompt = f"{question.description} {question.box} ."
        lines.append(f"{number}\t{question.answer}\t{prediction}\t{prompt}")
    return "".join(f"{line}\n" for line in lines)


def predictions_text(questions: Sequence[BoxQuestion], predictions: Sequence[str | None]) -> str:
    """Return the text of a file of JSON lines; null if the model said nothing about the box."""
    return json_lines({"line": q.line, "prediction": p} for q, p in zip(questions, predictions, strict=True))


def read_predictions(path: Path, questions: Sequence[BoxQuestion]) -> tuple[list[BoxQuestion], list[str | None]]:
    """Return the questions that are predicted, in gold order, and their predictions."""
    lines = read_text(path).split("\n")
    is_table = next((line for line in lines if line.strip()), "").count("\t") > 1
    predicted = _read_tsv(path, lines, questions) if is_table else _read_json(path, questions)
    if not predicted:
        raise UserError(f"{path}: holds 0 predictions; the gold has {len(questions)} questions", _TSV_REMEDY)
    chosen = [question for question in questions if question.line in predicted]
    return chosen, [predicted[question.line] for question in chosen]


def _read_tsv(path: Path, lines: Sequence[str], questions: Sequence[BoxQuestion]) -> Predicted:
    known = {(_plain(question.description), _plain(question.box)): question for question in questions}
    predicted: Predicted = {}
    for number, line in enumerate(lines, start=1):
        cells = line.removesuffix("\r").split("\t")
        # As in the official script: a line with an empty number, like the header, is passed over.
        if not line.strip() or (len(cells) == 4 and not cells[0]):
            continue
        place = f"{path}, line {number}"
        if len(cells) not in (3, 4):
            raise UserError(f"{place}: has {len(cells)} columns: {shortened(line)}", _TSV_REMEDY)
        target, prediction, prompt = cells[-3:]
        question = _question(prompt, place, known)
        if _plain(target) != _plain(question.answer):
            raise UserError(
                f"{place}: its target is {target!r}; gold line {question.line} has {question.answer!r}",
                remedy="name the gold file that was predicted: --gold FILE, --set split=NAME",
            )
        if question.line in predicted:
            raise UserError(f"{place}: gold line {question.line} is predicted twice", _TSV_REMEDY)
        predicted[question.line] = prediction or None
    return predicted


def _question(prompt: str, place: str, known: dict[tuple[str, str], BoxQuestion]) -> BoxQuestion:
    """Return the question of an input, which may be a whole prompt with instruction and demonstrations."""
    text = prompt.strip('"').replace('""', '"').rpartition("Description: ")[2]
    match = _STATEMENT.fullmatch(text.replace("\\nStatement:", "").replace(" Statement:", "").strip())
    if match is None:
        raise UserError(f"{place}: its input ends in {text[-60:]!r}", _TSV_REMEDY)
    description, box = _plain(match["description"]), _plain(match["box"])
    while description:
        if (description, box) in known:
            return known[description, box]
        description = description.partition(". ")[2]
    raise UserError(f"{place}: the gold file has no such question: …{prompt[-60:]!r}", _TSV_REMEDY)


def _plain(text: str) -> str:
    return " ".join(text.replace("Container", "Box").split()).strip(". ")


def _read_json(path: Path, questions: Sequence[BoxQuestion]) -> Predicted:
    in_order = [question.line for question in questions]
    known = set(in_order)
    predicted: Predicted = {}
    numbered = False
    for number, (place, row) in enumerate(read_lines(path, BoxLine)):
        numbered = numbered or row.line is not None
        line = in_order[number] if row.line is None and number < len(in_order) else row.line
        if line is None or line not in known:
            raise UserError(f"{place}: is about line {line}, which the gold file has no question in", _JSON_REMEDY)
        if line in predicted:
            raise UserError(f"{place}: line {line} is predicted twice", _JSON_REMEDY)
        predicted[line] = row.prediction
    refuse_unfilled(path, predicted.values(), "prediction")
    if not numbered and len(predicted) != len(questions):
        raise UserError(
            f"{path}: holds {len(predicted)} predictions; the gold has {len(questions)} questions", _JSON_REMEDY
        )
    return predicted
