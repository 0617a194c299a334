"""The published files: questions about one box each, in runs of as many as there are boxes.

There are two forms. For prompting (`few_shot`) an empty box `contains nothing` and the answer is what follows
`contains`; for fine-tuning T5 (`t5`) it `is empty` and the answer begins with `contains` or `is`.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal, TypeVar

from d2e_sft.util.encrypted_zip import PASSWORD, member_names, read_encrypted
from d2e_sft.util.errors import UserError
from eval.systems.boxes.answers import contents_of

_MASK = "<extra_id_0>"
P = TypeVar("P", Path, PurePosixPath)
_MASKED = re.compile(
    rf"(?P<description>.+\.) (?P<box>(?:Box|Container) \w+)(?P<verb> contains)? {_MASK} \.", re.DOTALL
)
_REMEDY = "expected a file in the published format; d2e data boxes makes one"
Form = Literal["few_shot", "t5"]


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
        form: of the file.
    """

    line: int
    scenario: int
    description: str
    box: str
    answer: str
    numops: int
    initial: frozenset[str]
    form: Form = "few_shot"

    @property
    def contents(self) -> frozenset[str]:
        """The gold contents."""
        return contents_of(self.answer)

    @property
    def changed(self) -> bool:
        """Whether the contents are others than at the start."""
        return self.contents != self.initial


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


def balanced(groups: Sequence[list[Question]], count: int, seed: int) -> list[list[Question]]:
    """For each number of operations on a box so many states with such a box, in their order (footnote 8 of the paper).

    All states, where there are fewer. Each number is drawn for alone, so that a state drawn twice is there once.
    """
    rng = random.Random(f"{seed}/boxes/balanced")
    chosen: set[int] = set()
    for numops in sorted({question.numops for group in groups for question in group}):
        fitting = [place for place, group in enumerate(groups) if any(q.numops == numops for q in group)]
        chosen.update(rng.sample(fitting, min(count, len(fitting))))
    return [groups[place] for place in sorted(chosen)]


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
    answer = answer.removeprefix(_MASK).strip()
    return Question(number, scenario, description, box, answer, numops, initial, "few_shot" if match["verb"] else "t5")


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
