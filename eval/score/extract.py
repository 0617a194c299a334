"""From what a model wrote to the answer it gave, without ever choosing between two candidates.

Extraction is strict first: the text behind the response form (`The answer is:`). It is lenient second: another way of
stating an answer, and at last the output as a whole; but only where the response form does not stand in the output.
A direct answer (zero-shot, few-shot) is read at the first place where something recognisable follows, because a model
without an end token often goes on to invent the next question and answers that too. A chain of thought is read at the
last such place, because it may weigh answers before it gives one. What stays ambiguous is not parsed, so that a habit
of hedging cannot score.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from d2e_sft.data.prompts import Setting
from d2e_sft.data.sample import NLI_LABELS
from eval.score.option_match import find_options, starts_with_label

Mode = Literal["strict", "lenient", "none"]
_Reader = Callable[[str], tuple[str, ...]]

_LABEL = "|".join(NLI_LABELS)
_LEADING_LABEL = re.compile(rf"^\W*({_LABEL})\b(?!\W*(?:(?:or|and)\W+)?(?:{_LABEL})\b)", re.IGNORECASE)
_ANY_LABEL = re.compile(rf"\b({_LABEL})\b", re.IGNORECASE)
# "not positive" need not mean negative in a model's mouth, so it counts as no answer.
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
        answers: nli: the label; scq: one option; mcq: the options in the order in which the model named them; qa: the
            text; chat: the whole output. Where nothing was recognised, the stripped output, or nothing for an empty
            output.
        mode: `strict` behind the response form, `lenient` elsewhere, `none` where nothing was recognised.
    """

    answers: tuple[str, ...]
    mode: Mode

    @property
    def parsed(self) -> bool:
        """Whether an answer was recognised."""
        return self.mode != "none"


def extract_answer(
    output: str, *, fmt: str, options: Sequence[str], marker: str, setting: Setting = "zero_shot"
) -> Extraction:
    """The answer that an output gives.

    Args:
        output: what the model generated, without the prompt.
        fmt: `nli`, `scq`, `mcq`, `qa` or `chat`.
        options: the candidates in the order of their letters; empty for nli and qa.
        marker: the response form before the answer, for example `The correct option is:`; empty where the prompt asks
            for the bare answer, which then is the first line (in a chain of thought the last).
        setting: how the model was asked; `cot` reads the last statement, the others the first.
    """
    if fmt == "chat":  # the whole output is the answer
        said = _without_thoughts(output).strip()
        return Extraction((said,) if said else (), "strict" if said else "none")
    readers: dict[str, _Reader] = {
        "nli": _read_label,
        "qa": _read_text,
        "scq": lambda text: find_options(text, options, several=False),
        "mcq": lambda text: find_options(text, options, several=True),
    }
    places = _Places(_without_thoughts(output), readers[fmt], last=setting == "cot", several=fmt == "mcq")
    form = r"\s+".join(re.escape(word) for word in marker.strip().removesuffix(":").split())
    stated = places.behind(rf"{form}\s*:") if form else [places.own_line(places.output)]
    if answers := places.read(stated):
        return Extraction(answers, "strict")
    # A response form with nothing readable behind it is the model's own word that it has no answer.
    for texts in () if form and stated else _lenient_places(places, form, whole_text=fmt != "qa"):
        if answers := places.read(texts):
            return Extraction(answers, "lenient")
    raw = output.strip()
    return Extraction((raw,) if raw else (), "none")


@dataclass(frozen=True)
class _Places:
    """Where in an output an answer may stand, in the order in which the setting asks to look."""

    output: str
    reader: _Reader
    last: bool
    several: bool
    read_before: set[str] = field(default_factory=set)  # and gave no answer

    def behind(self, pattern: str | re.Pattern[str]) -> list[str]:
        """The statements behind each match of a pattern without groups."""
        texts = re.split(pattern, self.output, flags=0 if isinstance(pattern, re.Pattern) else re.IGNORECASE)[1:]
        # A model that repeats itself says the same in a thousand places.
        once = dict.fromkeys(reversed(texts) if self.last else texts)
        return [_statement(text, several=self.several) for text in once]

    def own_line(self, text: str) -> str:
        """The first line that says something (and the labelled lines after it); in a chain of thought the last."""
        if not self.last:
            return _statement(text, several=self.several)
        lines = [line.strip() for line in text.splitlines() if line.strip("*_ \t")]
        first = max(len(lines) - 1, 0)
        while self.several and first > 0 and starts_with_label(lines[first]) and starts_with_label(lines[first - 1]):
            first -= 1
        return "\n".join(lines[first:])

    def read(self, texts: Sequence[str]) -> tuple[str, ...]:
        """The first answer that one of the texts gives."""
        for text in texts:
            # An output of one line is several places.
            if text not in self.read_before:
                self.read_before.add(text)
                if answers := self.reader(text):
                    return answers
        return ()


def _lenient_places(places: _Places, form: str, *, whole_text: bool) -> Iterator[list[str]]:
    if form:  # without its colon, which may be a phrase of the reasoning: it never rules out what follows here
        yield places.behind(rf"{form}\b")
    yield places.behind(_STATES_ANSWER)
    if places.last or not whole_text:
        yield [places.own_line(places.output)]
    if whole_text:  # a label or an option stands out in any text; a free answer is a line of its own
        yield [places.output]


def _without_thoughts(output: str) -> str:
    """The output behind a reasoning model's thoughts; nothing of it where they were cut off before they ended."""
    return output.rpartition(_THOUGHT_END)[2].partition(_THOUGHT_START)[0]


def _statement(text: str, *, several: bool) -> str:
    """The first line of `text` that says something; for several options also the labelled lines after it."""
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


def _read_text(text: str) -> tuple[str, ...]:
    answer = text.strip().strip("*").strip().removesuffix(".").strip()
    return (answer,) if answer else ()
