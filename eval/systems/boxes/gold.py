"""The published files: questions about one box each, in runs of as many as there are boxes.

There are two forms. In the form for prompting (`few_shot`) an empty box `contains nothing`, and the answer is what
follows `contains`. In the form for fine-tuning T5 (`t5`) it `is empty`, and the answer begins with `contains` or `is`.
"""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Literal, Self, TypeVar

from pydantic import model_validator

from d2e_sft.util.encrypted_zip import PASSWORD, member_names, read_encrypted
from d2e_sft.util.errors import UserError
from eval.systems.boxes.answers import contents_of
from eval.systems.files import Row, checked, read_text

MASK = "<extra_id_0>"
P = TypeVar("P", Path, PurePosixPath)
_MASKED = re.compile(rf"(?P<description>.+\.) (?P<box>(?:Box|Container) \w+)(?P<verb> contains)? {MASK} \.", re.S)
Form = Literal["few_shot", "t5"]


class Question(Row):
    """What does a box contain after some operations?

    Attributes:
        line: of the file, from 1.
        sample_id: the scenario.
        numops: operations that changed this box.
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
    def _parts(self) -> dict[str, str | None]:
        if found := _MASKED.fullmatch(self.sentence_masked):
            return found.groupdict()
        raise ValueError(f"sentence_masked ends {self.sentence_masked[-60:]!r}; expected '… Box N contains {MASK} .'")

    @property
    def description(self) -> str:
        """The initial state and the operations."""
        return str(self._parts["description"])

    @property
    def box(self) -> str:
        """`Box 0`."""
        return str(self._parts["box"])

    @property
    def form(self) -> Form:
        """The form of the file."""
        return "few_shot" if self._parts["verb"] else "t5"

    @property
    def answer(self) -> str:
        """The gold text, such as `the drug and the plate`, or `nothing`, or `is empty`."""
        return self.masked_content.removeprefix(MASK).strip()

    @property
    def contents(self) -> frozenset[str]:
        """The gold contents."""
        return contents_of(self.answer)

    @cached_property
    def changed(self) -> bool:
        """Whether the contents differ from those at the start."""
        return self.contents != _initial(self.description, self.box)


def read_questions(path: Path, *, split: str, password: str = PASSWORD) -> list[Question]:
    """Read a JSONL file of the published format, from a folder or zip archive.

    `split` is the beginning of the file's name there; in an archive its folder may come first, as in `few_shot/test`.
    Raises UserError, with file and line, if there is no such file, or a row does not have the format.
    """
    if path.is_dir():
        found = sorted(p for p in path.iterdir() if p.name.startswith(split) and p.suffix == ".jsonl")
        path = _only(path, split, found or sorted(path.glob("*.zip")))
    name = str(path)
    if path.suffix == ".zip":
        members = [member for member in map(PurePosixPath, member_names(path)) if member.suffix == ".jsonl"]
        member = _only(path, split, [member for member in members if f"/{split}" in f"/{member}"])
        name, text = f"{path}: {member}", read_encrypted(path, str(member), password)
    else:
        text = read_text(path)
    questions = []
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            place = f"{name}, line {number}: not a question of Boxes"
            try:
                row = json.loads(line)
            except ValueError as error:
                raise UserError(f"{place}: {error}", "expected the published form; d2e data boxes makes it") from None
            questions.append(checked(Question, {**row, "line": number} if isinstance(row, dict) else row, place))
    if not questions:
        raise UserError(f"{name}: holds no question; expected rows of Boxes", "generate it: d2e data boxes OUT.zip")
    return questions


def states(questions: Sequence[Question]) -> list[list[Question]]:
    """Group consecutive questions about one state, which have one description."""
    return [list(group) for _, group in itertools.groupby(questions, key=lambda q: (q.sample_id, q.description))]


def balanced(groups: Sequence[Sequence[Question]], count: int, seed: int) -> list[Sequence[Question]]:
    """Draw `count` states for each number of operations on a box, and return them in order (footnote 8 of the paper).

    If fewer states have such a box, all of them are taken. A state that is drawn twice is returned once.
    """
    rng = random.Random(f"{seed}/boxes/balanced")
    chosen: set[int] = set()
    for numops in sorted({question.numops for group in groups for question in group}):
        fitting = [place for place, group in enumerate(groups) if any(q.numops == numops for q in group)]
        chosen.update(rng.sample(fitting, min(count, len(fitting))))
    return [groups[place] for place in sorted(chosen)]


def _only(where: Path, split: str, found: Sequence[P]) -> P:
    if len(found) == 1:
        return found[0]
    held = f"several: {', '.join(map(str, found))}" if found else "none"
    raise UserError(
        f"{where}: expected one file of Boxes whose name begins with {split!r}; found {held}",
        remedy="name the file itself (--data FILE) or more of it (--set split=FOLDER/test); d2e data boxes makes one",
    )


def _initial(description: str, box: str) -> frozenset[str] | None:
    for clause in clauses(description):
        if clause.startswith((f"{box} contains", f"{box} is empty")):
            return contents_of(clause.removeprefix(box).strip())
        if clause.endswith(f" in {box}"):
            things = re.sub(r" (is|are)? ?in$", "", clause.removesuffix(f" {box}"))
            return contents_of("nothing" if things.lower() == "there is nothing" else things)
    return None


def clauses(description: str) -> list[str]:
    """Return the first sentence's clauses, one per box."""
    return description.partition(". ")[0].removesuffix(".").split(", ")


def mentions(text: Iterable[str], box: str) -> list[str]:
    """Return the texts that name the box."""
    return [part for part in text if re.search(rf"\b{re.escape(box)}\b", part)]
