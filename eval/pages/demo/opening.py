"""Choose the example that the page shows first, if possible one whose plain and debiased answers differ."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from d2e_sft.util.errors import UserError
from eval.pages.demo.answering import Answerer, Answers, DemoModel
from eval.pages.demo.question import Question
from eval.pages.demo.summary import differs

_PATIENCE = 60.0  # seconds


@dataclass(frozen=True)
class Opening:
    """The index of the example that the page shows first, its answers if any, and how it was chosen."""

    place: int
    answers: Answers | None
    told: str


def find_opening(
    model: DemoModel, answerer: Answerer, examples: Sequence[Question], *, patience: float = _PATIENCE
) -> Opening:
    """Answer the examples in order, up to the first whose plain and debiased answers differ.

    The page says how the example was chosen: it must not suggest that answers often differ.

    Args:
        patience: seconds after which no further example is tried.
    """
    answered: dict[int, Answers] = {}
    end = time.monotonic() + patience
    at = f"at α = {model.alpha:g}"
    for place, question in enumerate(examples):
        if answered and time.monotonic() > end:
            break
        try:
            answers = answerer.answer(question, model.alpha, model.max_new_tokens)
        except UserError:  # too long for the model; reported when the visitor chooses it
            continue
        answered[place] = answers
        if differs(question, model.prompt_set, answers):
            tried = "example" if len(answered) == 1 else f"of {len(answered)} examples"
            return Opening(place, answers, f"The first {tried} tried whose two answers differ {at}.")
    if not answered:
        return Opening(0, None, "")
    place = min(answered)
    told = f"In none of the {len(answered)} examples tried do the two answers differ {at}; this is the first."
    return Opening(place, answered[place], told if len(answered) > 1 else f"Its two answers are the same {at}.")
