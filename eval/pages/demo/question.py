"""A visitor's question as a sample, so that its prompts are those of training and evaluation.

The examples are samples of a benchmark, the run's own test rows, or three of this project's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from d2e_sft.config.recipe import recipe_of
from d2e_sft.data.prompts import PromptSet
from d2e_sft.data.sample import NLI_LABELS, EventSample, Format, check_row, pick_samples, read_samples
from d2e_sft.util.errors import UserError
from eval.run.benchmark import locate_benchmark, rows_file

CHOICE = ("scq", "mcq")


@dataclass(frozen=True)
class Question:
    """A question as typed; the `options` (scq, mcq) and right answers `expected`, if known, are one on each line.

    A non-empty `instruction` replaces the prompt set's.
    """

    fmt: str
    context: str
    question: str
    options: str = ""
    expected: str = ""
    instruction: str = ""

    def sample(self) -> EventSample:
        """The question as a sample, with an arbitrary answer if none is expected; UserError if it does not fit."""
        question = "hypothesis" if self.fmt == "nli" else "question"
        for field, text in (("context", self.context), (question, self.question)):
            if not text.strip():
                raise UserError(f"The {field} is empty.", f"Type a {field}.")
        options = _lines(self.options) if self.fmt in CHOICE else []
        anything = [NLI_LABELS[0]] if self.fmt == "nli" else options[:1] or ["(not known)"]
        parts = {"format": self.fmt, "context": self.context, "question": self.question, "options": options}
        fixed = {"id": "typed", "dataset": "typed", "split": "test", "relation": "causal"}
        checked = check_row({**fixed, **parts, "answers": _lines(self.expected) or anything})
        if isinstance(checked, str):
            raise UserError(f"The question does not fit its format. {checked}")
        return checked

    @property
    def is_answered(self) -> bool:
        return bool(_lines(self.expected))

    def wording(self, prompt_set: PromptSet) -> PromptSet:
        if not self.instruction.strip():
            return prompt_set
        fmt = cast(Format, self.fmt)
        prompt = prompt_set.zero_shot[fmt].model_copy(update={"system": self.instruction.strip()})
        return prompt_set.model_copy(update={"zero_shot": {**prompt_set.zero_shot, fmt: prompt}})


OWN_EXAMPLES = (
    Question(
        "qa",
        "The baker put the bread into the oven at six. At seven the power failed. The bread stayed pale.",
        "Why did the bread stay pale?",
        expected="the power failed",
    ),
    Question(
        "nli",
        "Nadia opened the window only after the smoke had reached the hall. Her brother called the fire brigade.",
        "Nadia opens the window before the smoke reaches the hall",
        expected="negative",
    ),
    Question(
        "scq",
        "The glass fell from the table. It landed on a thick carpet. Lea picked it up and filled it again.",
        "What happened to the glass when it landed?",
        options="It broke into pieces\nIt stayed whole\nIt rolled into the kitchen",
        expected="It stayed whole",
    ),
)


def examples_for(model: str, bench: str | None, count: int, seed: int) -> list[Question]:
    """Draw questions from the benchmark or, without one, from the test rows of the run's training data."""
    file: Path | None = None
    if bench is not None:
        file = locate_benchmark(bench).file
    elif (recipe := recipe_of(model)) is not None:
        file = rows_file(Path(recipe.data.train).parent, "test")
    if file is None:
        return list(OWN_EXAMPLES)
    with_context = [sample for sample in read_samples(file) if sample.context.strip()]
    return [as_question(sample) for sample in pick_samples(with_context, (), count, seed)] or list(OWN_EXAMPLES)


def as_question(sample: EventSample) -> Question:
    options, answers = "\n".join(sample.options), "\n".join(sample.answers)
    return Question(sample.format, sample.context, sample.question, options, answers)


def without_stale_answer(typed: Question, example: Question) -> Question:
    """The typed question, without the example's answer if the question is no longer the example's."""
    draft = replace(typed, instruction=example.instruction)
    same_answer, same_question = draft.expected == example.expected, draft == replace(example, expected=draft.expected)
    return replace(typed, expected="") if same_answer and not same_question else typed


def labels_of(questions: Sequence[Question], length: int = 60) -> list[str]:
    """A short name for each question: its format and text."""
    texts = [(question.fmt, " ".join(question.question.split())) for question in questions]
    return [f"{fmt}: {text if len(text) <= length else text[: length - 1] + '…'}" for fmt, text in texts]


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]
