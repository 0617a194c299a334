"""What the page opens with: an example that is answered already, and in two ways where the model gives two answers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from d2e_sft.util.errors import UserError
from eval.pages.demo.answering import Answerer, Answers, DemoModel
from eval.pages.demo.question import Question
from eval.pages.demo.summary import differs

_PATIENCE = 60.0  # seconds: after that the page opens with what there is


@dataclass(frozen=True)
class Opening:
    """The example that the page shows first.

    Attributes:
        place: which of the examples.
        answers: its answers; None where none of the examples could be answered.
        told: how it was found, in a sentence.
    """

    place: int
    answers: Answers | None
    told: str


def find_opening(
    model: DemoModel, answerer: Answerer, examples: Sequence[Question], *, patience: float = _PATIENCE
) -> Opening:
    """Answer the examples, in their order, up to the first with two different answers, plain and debiased.

    Where none differs the first is shown, and it is said that none did: how often they differ is what a reader of the
    page would otherwise guess wrongly from a chosen example.

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
        except UserError:  # too long for the model: said where the visitor chooses it
            continue
        answered[place] = answers
        if differs(question, model.prompt_set, answers):
            tried = "example" if len(answered) == 1 else f"of {len(answered)} examples"
            return Opening(place, answers, f"The first {tried} tried whose two answers differ {at}.")
    if not answered:
        return Opening(0, None, "")
    place = min(answered)
    if len(answered) == 1:
        return Opening(place, answers=answered[place], told=f"Its two answers are the same {at}.")
    told = f"In none of the {len(answered)} examples tried do the two answers differ {at}; this is the first."
    return Opening(place, answered[place], told)
