"""From what a model wrote to the answer it gave, without ever choosing between two candidates.

Extraction is strict first: the text behind the response form (`The answer is:`), at the first place where
something recognisable follows. The first place and not the last, because a model without an end token
often goes on to invent the next question and answers that too. Only an output without the response form
is read as a whole. What stays ambiguous is not parsed, so that a habit of hedging cannot score.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from d2e_sft.sample import NLI_LABELS
from eval.option_match import find_options, starts_with_label

_Reader = Callable[[str], tuple[str, ...]]

_LABEL = "|".join(NLI_LABELS)
_LEADING_LABEL = re.compile(rf"^\W*({_LABEL})\b(?!\W*(?:(?:or|and)\W+)?(?:{_LABEL})\b)", re.IGNORECASE)
_ANY_LABEL = re.compile(rf"\b({_LABEL})\b", re.IGNORECASE)
# "not positive" need not mean negative in a model's mouth, so it counts as no answer.
_DENIED_LABEL = re.compile(rf"\b(?:not|neither|nor|non)[\s-]+(?:{_LABEL})\b|n't\s+(?:{_LABEL})\b", re.IGNORECASE)


@dataclass(frozen=True)
class Extraction:
    """The answer found in an output.

    Attributes:
        answers: nli: the label; scq: one option; mcq: the options in their order in the prompt; qa: the text.
            Where nothing was recognised, the stripped output, or nothing for an empty output.
        parsed: whether an answer was recognised.
    """

    answers: tuple[str, ...]
    parsed: bool


def extract_answer(output: str, *, fmt: str, options: Sequence[str], marker: str) -> Extraction:
    """The answer that an output gives.

    Args:
        output: what the model generated, without the prompt.
        fmt: `nli`, `scq`, `mcq` or `qa`.
        options: the candidates in the order of their letters; empty for nli and qa.
        marker: the response form before the answer, for example `The correct option is:`.
    """
    readers: dict[str, _Reader] = {
        "nli": _read_label,
        "qa": _read_text,
        "scq": lambda text: find_options(text, options, several=False),
        "mcq": lambda text: find_options(text, options, several=True),
    }
    answers = _read(output, readers[fmt], marker, several=fmt == "mcq")
    if answers:
        return Extraction(answers, parsed=True)
    raw = output.strip()
    return Extraction((raw,) if raw else (), parsed=False)


def _read(output: str, reader: _Reader, marker: str, *, several: bool) -> tuple[str, ...]:
    stem = r"\s+".join(re.escape(word) for word in marker.strip().removesuffix(":").split())
    if not stem:
        return reader(output)
    stated = re.split(rf"{stem}\s*:", output, flags=re.IGNORECASE)[1:]
    # Without the colon it may be a phrase of the reasoning, so that form never rules out the whole output.
    hinted = [] if stated else re.split(rf"{stem}\b", output, flags=re.IGNORECASE)[1:]
    for text in stated or hinted:
        if answers := reader(_statement(text, several=several)):
            return answers
    return () if stated else reader(output)


def _statement(text: str, *, several: bool) -> str:
    """The first line of `text` that says something; for several options also the labelled lines after it."""
    lines = [line.strip() for line in text.splitlines()]
    first = next((i for i, line in enumerate(lines) if line.strip("*_ ")), len(lines))
    last = first + 1
    while several and last < len(lines) and starts_with_label(lines[last]):
        last += 1
    return "\n".join(lines[first:last])


def _read_label(text: str) -> tuple[str, ...]:
    if leading := _LEADING_LABEL.match(text):
        return (leading[1].lower(),)
    labels = {match.lower() for match in _ANY_LABEL.findall(text)}
    if len(labels) != 1 or _DENIED_LABEL.search(text):
        return ()
    return tuple(labels)


def _read_text(text: str) -> tuple[str, ...]:
    answer = text.strip().removesuffix(".").strip()
    return (answer,) if answer else ()
