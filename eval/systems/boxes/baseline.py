"""The paper's random baseline: 0 to 3 of the things named in the same clauses as the box (section 4.1)."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from eval.systems.boxes.gold import Question, clauses, mentions

_MOST = 3


def random_answers(questions: Sequence[Question], seed: int) -> list[str]:
    """A random answer to each question."""
    rng = random.Random(f"{seed}/boxes/baseline")
    return [_draw(candidates(question), rng) for question in questions]


def candidates(question: Question) -> list[str]:
    """The things named in clauses and operations that name the box."""
    operations = question.description.removesuffix(".").split(". ")[1:]
    texts = mentions([*clauses(question.description), *operations], question.box)
    things = (thing for text in texts for thing in re.findall(r"\b[Tt]he (\S+)", text))
    return list(dict.fromkeys(thing.rstrip(",.") for thing in things if thing != "contents"))


def _draw(things: Sequence[str], rng: random.Random) -> str:
    count = rng.randint(0, min(_MOST, len(things)))
    return " and ".join(f"the {thing}" for thing in rng.sample(things, count)) or "nothing"
