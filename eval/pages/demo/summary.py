"""What the answers show about the habit, in words, and which example the page shows first.

Texts of models and visitors are escaped.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from d2e_sft.data.prompts import PromptSet
from d2e_sft.util.errors import UserError
from eval.pages.demo.answering import Answerer, Answers, DemoModel
from eval.pages.demo.question import Question
from eval.score.metrics import normalise
from eval.score.predictions import Prediction
from eval.score.scoring import score_output

_AT_ZERO = "At α = 0 nothing is subtracted. For a debiased answer, move the slider for α, and answer again."


def _parsed(question: Question, prompt_set: PromptSet, answers: Answers) -> list[Prediction]:
    """The answers, parsed as by `d2e eval`."""
    sample = question.sample()
    marker, given = prompt_set.marker(sample.format), prompt_set.given(sample.format)
    texts = (answers.plain, answers.debiased, answers.imagined)
    return [score_output(sample, text, marker, given=given) for text in texts]


def _key(answer: Prediction) -> str:
    return normalise("; ".join(answer.answer))


def summarise(question: Question, prompt_set: PromptSet, answers: Answers, alpha: float) -> str:
    """HTML with each parsed answer, whether it is right if that is known, and a verdict."""
    names = ("Plain", f"Debiased, α = {alpha:g}", "Without the context")
    said = dict(zip(names, _parsed(question, prompt_set, answers), strict=True))
    if alpha == 0:
        del said[names[1]]  # it was not decoded
    rows = []
    for name, one in said.items():
        right = one.exact_match == 1
        mark = "<span class='right'>✓ right</span>" if right else "<span>✗ not as expected</span>"
        text = escape("; ".join(one.answer)) if one.parsed else "<em>no answer recognised</em>"
        rows.append(f"<dt>{escape(name)}</dt><dd>{text}{mark if question.is_answered else ''}</dd>")
    parts = [f'<dl class="d2e-read">{"".join(rows)}</dl>', f"<p>{escape(_verdict(*said.values()))}</p>"]
    if question.is_answered:
        parts.insert(1, f"<p>Expected: <strong>{escape('; '.join(question.sample().answers))}</strong></p>")
    if alpha == 0:
        parts.append(f"<p>{_AT_ZERO}</p>")
    if answers.cut:
        parts.append("<p>The context is too long for the model: its end was left out.</p>")
    return "".join(parts)


def differs(question: Question, prompt_set: PromptSet, answers: Answers) -> bool:
    """Whether plain and debiased answers differ, parsed as by `d2e eval`."""
    plain, debiased, _ = _parsed(question, prompt_set, answers)
    return _key(plain) != _key(debiased)


def _verdict(plain: Prediction, *others: Prediction) -> str:
    """What the answers show about the model's habit; the others are the debiased one, if any, and the imagined one."""
    if not all(one.parsed for one in (plain, *others)):
        return "An answer was not recognised: the model did not follow the form that the instruction asks for."
    debiased, imagined, paired = others[0], others[-1], len(others) > 1
    same, habit = _key(plain) == _key(debiased), _key(plain) == _key(imagined)
    if habit and same:
        unchanged = ", and debiasing at this α does not change it" if paired else ""
        return f"The answer is the same with and without the context{unchanged}."
    if habit:
        return (
            "The plain answer is the same without the context: it is the model's habit. "
            "With that habit subtracted, the answer is another."
        )
    if same or not paired:
        return f"The context changes the answer{', and debiasing at this α keeps it' if paired else ''}."
    if _key(debiased) == _key(imagined):
        return "The context changes the plain answer; the debiased one is the same as without the context."
    return "The context changes the answer, and debiasing changes it again."


@dataclass(frozen=True)
class Opening:
    """The index of the example that the page shows first, its answers if any, and how it was chosen."""

    place: int
    answers: Answers | None
    told: str


def find_opening(
    model: DemoModel, answerer: Answerer, examples: Sequence[Question], *, patience: float = 60.0
) -> Opening:
    """Answer the examples in order, up to the first whose plain and debiased answers differ.

    The page says how the example was chosen: it must not suggest that answers often differ. After `patience` seconds,
    no further example is tried. At α = 0 none can differ, so one is answered.
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
        if model.alpha == 0:
            return Opening(place, answers, "")
        if differs(question, model.prompt_set, answers):
            tried = "example" if len(answered) == 1 else f"of {len(answered)} examples"
            return Opening(place, answers, f"The first {tried} tried whose two answers differ {at}.")
    if not answered:
        return Opening(0, None, "")
    place = min(answered)
    told = f"In none of the {len(answered)} examples tried do the two answers differ {at}; this is the first."
    return Opening(place, answered[place], told if len(answered) > 1 else f"Its two answers are the same {at}.")
