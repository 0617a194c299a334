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
from d2e_sft.data.sample import NLI_LABELS, WORDED, EventSample, Format, read_samples
from d2e_sft.util.errors import UserError, did_you_mean
from eval.run.benchmark import choose_samples, locate_benchmark, rows_file

CHOICE = ("scq", "mcq")


@dataclass(frozen=True)
class Question:
    """A question as typed.

    Attributes:
        options: one on each line, for scq and mcq.
        expected: the right answers, one on each line, if known.
        instruction: replaces the prompt set's if not empty.
    """

    fmt: str
    context: str
    question: str
    options: str = ""
    expected: str = ""
    instruction: str = ""

    def sample(self) -> EventSample:
        """The question as a sample, with an arbitrary answer if none is expected.

        Raises:
            UserError: a part is empty or does not fit the format.
        """
        if self.fmt not in WORDED:
            raise UserError(f"format {self.fmt!r}: expected one of {', '.join(WORDED)}")
        if not self.context.strip():
            raise UserError("The context is empty.", "Type a text for the model to read.")
        if not self.question.strip():
            what = "hypothesis" if self.fmt == "nli" else "question"
            raise UserError(f"The {what} is empty.", f"Type a {what} about the context.")
        options = self._options()
        anything = [NLI_LABELS[0]] if self.fmt == "nli" else options[:1] or ["(not known)"]
        return EventSample(
            id="typed",
            dataset="typed",
            split="test",
            relation="causal",
            format=cast(Format, self.fmt),
            context=self.context,
            question=self.question,
            options=options,
            answers=self._expected(options) or anything,
        )

    @property
    def is_answered(self) -> bool:
        """Whether an answer is expected."""
        return bool(_lines(self.expected))

    def wording(self, prompt_set: PromptSet) -> PromptSet:
        """The prompt set, with the visitor's instruction."""
        if not self.instruction.strip():
            return prompt_set
        fmt = cast(Format, self.fmt)
        own = prompt_set.zero_shot[fmt].model_copy(update={"system": self.instruction.strip()})
        return prompt_set.model_copy(update={"zero_shot": {**prompt_set.zero_shot, fmt: own}})

    def _options(self) -> list[str]:
        if self.fmt not in CHOICE:
            return []
        options = _lines(self.options)
        if len(options) < 2:
            raise UserError(f"The options hold {len(options)} lines.", "Type two or more, one on each line.")
        twice = next((option for option in options if options.count(option) > 1), None)
        if twice is not None:
            raise UserError(f"The option {twice!r} is there twice.", "Type different ones, one on each line.")
        return options

    def _expected(self, options: list[str]) -> list[str]:
        expected = _lines(self.expected)
        known = list(NLI_LABELS) if self.fmt == "nli" else options
        for answer in expected if known else ():
            if answer not in known:
                raise UserError(
                    f"The expected answer {answer!r} is none of {', '.join(known)}.{did_you_mean(answer, known)}",
                    "Type one of them, or nothing.",
                )
        if len(expected) > 1 and self.fmt in ("nli", "scq"):
            raise UserError(f"{len(expected)} answers are expected.", f"Type one: format {self.fmt} has one.")
        return expected


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
    """Draw questions from the benchmark or, without one, from the test rows of the run's training data.

    Raises:
        UserError: the benchmark is missing, or has a bad row.
    """
    file: Path | None = None
    if bench is not None:
        file = locate_benchmark(bench).file
    elif (recipe := recipe_of(model)) is not None:
        file = rows_file(Path(recipe.data.train).parent, "test")
    if file is None:
        return list(OWN_EXAMPLES)
    with_context = [sample for sample in read_samples(file) if sample.context.strip()]
    return [as_question(sample) for sample in choose_samples(with_context, (), count, seed)] or list(OWN_EXAMPLES)


def as_question(sample: EventSample) -> Question:
    """A sample as a question."""
    options, answers = "\n".join(sample.options), "\n".join(sample.answers)
    return Question(sample.format, sample.context, sample.question, options, answers)


def without_stale_answer(typed: Question, example: Question) -> Question:
    """The typed question, without the example's answer if the question is no longer the example's."""
    asked = replace(typed, instruction=example.instruction)
    same_answer, same_question = asked.expected == example.expected, asked == replace(example, expected=asked.expected)
    return replace(typed, expected="") if same_answer and not same_question else typed


def labels_of(questions: Sequence[Question], length: int = 60) -> list[str]:
    """A short name for each question: its format and text."""
    texts = [(one.fmt, " ".join(one.question.split())) for one in questions]
    return [f"{fmt}: {text if len(text) <= length else text[: length - 1] + '…'}" for fmt, text in texts]


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]
