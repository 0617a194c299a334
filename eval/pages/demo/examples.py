"""Questions to begin with: samples of a benchmark or of the run's own test rows, else three of this project's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from d2e_sft.config.recipe import recipe_of
from d2e_sft.data.sample import EventSample, read_samples
from eval.pages.demo.question import Question
from eval.pages.inspection.inspect import choose
from eval.run.benchmark import locate_bench, rows_file

OWN = (
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
    """Questions of the benchmark; without one, of the test rows beside those the run was trained on.

    Raises:
        UserError: the benchmark is not there, or has a bad row.
    """
    file = locate_bench(bench).file if bench is not None else _test_rows(model)
    if file is None:
        return list(OWN)
    with_context = [sample for sample in read_samples(file) if sample.context.strip()]
    return [as_question(sample) for sample in choose(with_context, (), count, seed)] or list(OWN)


def as_question(sample: EventSample) -> Question:
    """A sample as somebody would type it."""
    return Question(
        sample.format,
        sample.context,
        sample.question,
        "\n".join(sample.options),
        "\n".join(sample.answers),
    )


def without_stale_answer(typed: Question, example: Question) -> Question:
    """What was typed; without the example's answer where the example is no longer what is asked."""
    asked = replace(typed, instruction=example.instruction)
    same_answer, same_question = asked.expected == example.expected, asked == replace(example, expected=asked.expected)
    return replace(typed, expected="") if same_answer and not same_question else typed


def labels_of(questions: Sequence[Question], length: int = 60) -> list[str]:
    """A short name of each: its format and what it asks."""
    texts = [" ".join(one.question.split()) for one in questions]
    return [
        f"{one.fmt}: {text if len(text) <= length else text[: length - 1] + '…'}"
        for one, text in zip(questions, texts, strict=True)
    ]


def _test_rows(model: str) -> Path | None:
    """The test rows of the build that a run was trained on, where it is still there."""
    recipe = recipe_of(model)
    return None if recipe is None else rows_file(Path(recipe.data.train).parent, "test")
