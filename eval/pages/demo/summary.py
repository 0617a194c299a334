"""What the three answers say about the habit, in words; everything a model or a visitor wrote is escaped."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from d2e_sft.data.prompts import PromptSet
from eval.pages.demo.answering import Answers
from eval.pages.demo.question import Question
from eval.score.metrics import normalise
from eval.score.predictions import Prediction
from eval.score.scoring import score_output


@dataclass(frozen=True)
class _Said:
    """One of the answers, as `d2e eval` reads it."""

    name: str
    read: Prediction

    @property
    def text(self) -> str:
        return "; ".join(self.read.answer)

    @property
    def key(self) -> str:
        return normalise(self.text)


def summarise(question: Question, prompt_set: PromptSet, answers: Answers, alpha: float) -> str:
    """HTML: what was read from each answer, whether it is right where that is known, and what that tells."""
    sample = question.sample()
    marker = prompt_set.marker(sample.format)
    names = {
        "Plain": answers.plain,
        f"Debiased, α = {alpha:g}": answers.debiased,
        "Without the context": answers.imagined,
    }
    said = [_Said(name, score_output(sample, text, marker)) for name, text in names.items()]
    rows = "".join(_row(one, question.is_answered) for one in said)
    parts = [f'<dl class="d2e-read">{rows}</dl>', f"<p>{escape(verdict(*said))}</p>"]
    if question.is_answered:
        parts.insert(1, f"<p>Expected: <strong>{escape('; '.join(sample.answers))}</strong></p>")
    if answers.cut:
        parts.append("<p>The context is too long for the model: its end was left out.</p>")
    return "".join(parts)


def differs(question: Question, prompt_set: PromptSet, answers: Answers) -> bool:
    """Whether plain and debiased answers are two, as `d2e eval` reads them."""
    sample = question.sample()
    marker = prompt_set.marker(sample.format)
    plain, debiased = (score_output(sample, text, marker) for text in (answers.plain, answers.debiased))
    return normalise("; ".join(plain.answer)) != normalise("; ".join(debiased.answer))


def verdict(plain: _Said, debiased: _Said, imagined: _Said) -> str:
    """What the answers tell about the model's habit."""
    if not all(one.read.parsed for one in (plain, debiased, imagined)):
        return "Where no answer was recognised, the model did not keep to the form that the instruction asks for."
    same, habit = plain.key == debiased.key, plain.key == imagined.key
    if habit and same:
        return "The model says the same with and without the context, and debiasing at this α does not change it."
    if habit:
        return (
            "Without having read the context the model already says what it says plainly. "
            "With that habit subtracted, it says something else."
        )
    if same:
        return "The context changes what the model says, and debiasing at this α leaves that as it is."
    if debiased.key == imagined.key:
        return "The context changes what the model says plainly; debiased, it says what it says without the context."
    return "The context changes what the model says, and debiasing changes it once more."


def _row(said: _Said, judged: bool) -> str:
    right = said.read.exact_match == 1
    mark = ("<span class='right'>✓ right</span>" if right else "<span>✗ not what is expected</span>") if judged else ""
    text = escape(said.text) if said.read.parsed else "<em>no answer recognised</em>"
    return f"<dt>{escape(said.name)}</dt><dd>{text}{mark}</dd>"
