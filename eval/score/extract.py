"""Find the answer in a model's output, without ever choosing between two candidates.

Strict extraction reads the text after the response form (`The answer is:`); without one, lenient extraction tries
other ways to state an answer, and last the whole output. A direct answer is read at the first readable place, because
a model without an end token often invents the next question and answers it too. A chain of thought is read at the
last such place, because it may weigh answers first. An ambiguous output is not parsed, so hedging cannot score.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from d2e_sft.data.prompts import Setting
from d2e_sft.data.sample import NLI_LABELS
from d2e_sft.util.option_match import find_options, mentions, starts_with_label

Mode = Literal["strict", "lenient", "none"]
_Reader = Callable[[str], tuple[str, ...]]

_LABEL = "|".join(NLI_LABELS)
_LEADING_LABEL = re.compile(rf"^\W*({_LABEL})\b(?!\W*(?:(?:or|and)\W+)?(?:{_LABEL})\b)", re.IGNORECASE)
_ANY_LABEL = re.compile(rf"\b({_LABEL})\b", re.IGNORECASE)
# "not positive" need not mean negative, so it counts as no answer.
_DENIED_LABEL = re.compile(rf"\b(?:not|neither|nor|non)[\s-]+(?:{_LABEL})\b|n't\s+(?:{_LABEL})\b", re.IGNORECASE)
# "Final answer: …", "the best option is …"; but not "Options:", which repeats the prompt's list.
_STATES_ANSWER = re.compile(
    r"\b(?:answers?|(?:correct|right|best|final|my)\s+(?:options?|choices?|label))(?:\s+(?:is|are)\b|\s*:)\W*",
    re.IGNORECASE,
)
_THOUGHT_END, _THOUGHT_START = "</think>", "<think>"


@dataclass(frozen=True)
class Extraction:
    """The answer found in an output.

    Attributes:
        answers: nli: the label; scq: one option; mcq: the options in the model's order; qa: the text; chat: the whole
            output. If nothing was recognised, the stripped output, if there is any.
        mode: `strict` after the response form, `lenient` elsewhere, `none` if nothing was recognised.
        ambiguous: Whether nothing was recognised because a text could mean several options.
    """

    answers: tuple[str, ...]
    mode: Mode
    ambiguous: bool = False

    @property
    def parsed(self) -> bool:
        return self.mode != "none"


def extract_answer(
    output: str, *, fmt: str, options: Sequence[str], marker: str, setting: Setting = "zero_shot", given: str = ""
) -> Extraction:
    """Return the answer in an output.

    Args:
        output: the generated text, without the prompt.
        options: the candidates in the order of their letters; empty for nli and qa.
        marker: the response form before the answer, for example `The correct option is:`. If the prompt asks for the
            bare answer, it is empty, and the answer is the first line (in a chain of thought the last).
        given: the end of a prompt that contains the response form up to the answer; the output continues it.
    """
    if fmt == "chat":  # the whole output is the answer
        text = without_thoughts(output).strip()
        return Extraction((text,) if text else (), "strict" if text else "none")
    readers: dict[str, _Reader] = {
        "nli": _read_label,
        "qa": lambda text: tuple(filter(None, [text.strip().strip("*").strip().removesuffix(".").strip()])),
        "scq": lambda text: find_options(text, options, several=False),
        "mcq": lambda text: find_options(text, options, several=True),
    }
    text = f"{given} {output}" if given else output
    places = _Places(without_thoughts(text), readers[fmt], last=setting == "cot", several=fmt == "mcq")
    form = r"\s+".join(re.escape(word) for word in marker.strip().removesuffix(":").split())
    stated = places.behind(rf"{form}\s*:") if form else [places.own_line(places.output)]
    if answers := places.read(stated):
        return Extraction(answers, "strict")
    # A response form without a readable answer means that the model gives none.
    for texts in () if form and stated else _lenient_places(places, form, whole_text=fmt != "qa"):
        if answers := places.read(texts):
            return Extraction(answers, "lenient")
    raw = output.strip()
    return Extraction((raw,) if raw else (), "none", any(mentions(text, options) for text in places.read_before))


@dataclass(frozen=True)
class _Places:
    """Places in an output that may hold an answer, in the setting's order."""

    output: str
    reader: _Reader
    last: bool
    several: bool
    read_before: set[str] = field(default_factory=set)  # and gave no answer

    def behind(self, pattern: str | re.Pattern[str]) -> list[str]:
        """Return the statements after each match of a pattern without groups."""
        texts = re.split(pattern, self.output, flags=0 if isinstance(pattern, re.Pattern) else re.IGNORECASE)[1:]
        # A model that repeats itself has thousands of equal statements.
        once = dict.fromkeys(reversed(texts) if self.last else texts)
        return [_statement(text, several=self.several) for text in once]

    def own_line(self, text: str) -> str:
        """Return the first line with text (and the labelled lines after it); in a chain of thought the last."""
        if not self.last:
            return _statement(text, several=self.several)
        lines = [line.strip() for line in text.splitlines() if line.strip("*_ \t")]
        first = max(len(lines) - 1, 0)
        while self.several and first > 0 and starts_with_label(lines[first]) and starts_with_label(lines[first - 1]):
            first -= 1
        return "\n".join(lines[first:])

    def read(self, texts: Sequence[str]) -> tuple[str, ...]:
        for text in texts:
            if text not in self.read_before:
                self.read_before.add(text)
                if answers := self.reader(text):
                    return answers
        return ()


def _lenient_places(places: _Places, form: str, *, whole_text: bool) -> Iterator[list[str]]:
    if form:  # without its colon; since it may be part of the reasoning, the other places are still tried
        yield places.behind(rf"{form}\b")
    yield places.behind(_STATES_ANSWER)
    if places.last or not whole_text:
        yield [places.own_line(places.output)]
    if whole_text:  # a label or an option can be found in any text; a free answer is a line of its own
        yield [places.output]


def without_thoughts(output: str) -> str:
    """Return the output after a reasoning model's thoughts; nothing if they were cut off."""
    return output.rpartition(_THOUGHT_END)[2].partition(_THOUGHT_START)[0]


def _statement(text: str, *, several: bool) -> str:
    """Return the first line with text; for several options also the labelled lines after it."""
    lines = text.splitlines()
    first = next((i for i, line in enumerate(lines) if line.strip().strip("*_ ")), len(lines))
    last = first + 1
    while several and last < len(lines) and starts_with_label(lines[last].strip()):
        last += 1
    return "\n".join(line.strip() for line in lines[first:last])


def _read_label(text: str) -> tuple[str, ...]:
    if leading := _LEADING_LABEL.match(text):
        return (leading[1].lower(),)
    labels = {match.lower() for match in _ANY_LABEL.findall(text)}
    if len(labels) != 1 or _DENIED_LABEL.search(text):
        return ()
    return tuple(labels)
