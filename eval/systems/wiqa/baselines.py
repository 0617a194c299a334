"""The two rule-based baselines of WIQA's Table 2: the training set's most frequent label, and words' polarities."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from d2e_sft.util.files import load_yaml
from eval.systems.wiqa.labels import LABELS, Label
from eval.systems.wiqa.questions import Question
from eval.systems.wiqa.scorer import accuracy

MAJORITY: Label = "more"  # of the training set: "correct"
_LEXICON = Path(__file__).with_name("polarity.yaml")


@cache
def lexicon() -> dict[str, int]:
    """Word → its polarity, +1 or −1."""
    content: dict[str, list[str]] = load_yaml(_LEXICON.read_text(encoding="utf-8"))
    return {word: sign for sign, name in ((1, "more"), (-1, "less")) for word in content[name]}


def polarity_of(text: str) -> int | None:
    """+1 where the first word of the lexicon in a change is a positive one, −1 where a negative; None without one."""
    for word in re.findall(r"[a-z]+", text.lower()):
        if word in lexicon():
            return lexicon()[word]
    return None


def by_polarity(question: Question, seed: int) -> Label:
    """Equal polarities of cause and effect are more, different ones less; a random label where one is missing."""
    cause, effect = polarity_of(question.cause), polarity_of(question.effect)
    if cause is None or effect is None:
        return random.Random(f"{seed}/{question.id}").choice(LABELS)
    return "more" if cause == effect else "less"


def baselines(questions: Sequence[Question], seed: int) -> dict[str, Any]:
    """Accuracy of both."""
    return {
        "majority": accuracy(questions, {question.id: MAJORITY for question in questions}),
        "polarity": accuracy(questions, {question.id: by_polarity(question, seed) for question in questions}),
    }
