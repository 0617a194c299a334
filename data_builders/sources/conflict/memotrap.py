"""MemoTrap (Liu & Liu, Inverse Scaling Prize 2023): an instruction asks for an ending other than the well-known one.

Every row is a `conflict`: the answer is the ending that the instruction asks for, the habit the other one. The
instruction becomes the context, and the text to continue becomes the question, so a sample without its context asks
for the habit only.

The third file has hateful sentences and their reversals. It is left out unless `hate_speech=true`, so that tables,
pages and logs show them only on request.
"""

from __future__ import annotations

import ast
import re
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from d2e_sft.data.sample import Split
from data_builders.raw.reader import Draft
from data_builders.raw.row import BadRowError
from data_builders.raw.source import Job, Samples, SourceOptions, SplitRows
from data_builders.sources.facts import source
from data_builders.sources.rows import Form, RawRow, Text, columns

FILES = ("endings", "translations", "hate_speech", "science")
_TRANSLATION = re.compile(r"(Translate the following sentence from \w+ into English)\.\n(.+)\nto:\n(.+)", re.DOTALL)
_SCIENCE = re.compile(r"(.+?)\nA\. (.+)\nB\. (.+)\nAnswer:", re.DOTALL)
# The question about the history of science is before the event or after it.
_BEFORE_EVENT = re.compile(r"(What was [^.:]+? the following event): (.+)", re.DOTALL)
_AFTER_EVENT = re.compile(r"(.+) ((?:Before|Prior to|What was)[^.]+\?)", re.DOTALL)


class MemoTrapOptions(SourceOptions):
    """Options of MemoTrap.

    Attributes:
        hate_speech: Also read the file of hateful sentences and their reversals.
    """

    hate_speech: bool = False


def _read_python(text: Any) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


class _Row(RawRow):
    prompt: Text
    # The file has a list of the two endings in Python's notation.
    classes: Annotated[list[Text], Field(min_length=2, max_length=2), BeforeValidator(_read_python)]
    answer_index: Literal["0", "1"]


def read(job: Job) -> dict[Split, Samples]:
    """Read the test (2,439 rows, all conflict; with `hate_speech` 2,539)."""
    options: MemoTrapOptions = job.options
    inputs = {key: job.input(key, "test") for key in FILES}
    rows = SplitRows(
        [
            (key, draft)
            for key, raw in inputs.items()
            for draft in Form(_Row, partial(_draft, key), lambda raw: raw.csv_rows(columns(_Row))).read(raw)
        ]
    )
    if not options.hate_speech:
        rows.keep(
            "no hateful sentences",
            "3-hate-speech-ending.csv is read on request only (hate_speech=true)",
            [(key, draft) for key, draft in rows.rows if key != "hate_speech"],
        )
    return {
        "test": rows.become(
            [sample for key, draft in rows.rows for sample in inputs[key].parse([draft], inputs[key].sample)]
        )
    }


def _draft(key: str, row: _Row) -> Draft:
    options = row.classes
    if key == "science":
        context, question, options = _science(row)
    elif key == "translations":
        found = _TRANSLATION.fullmatch(row.prompt)
        if not found:
            raise _bad_prompt(row, "'Translate … into English.', a sentence, 'to:' and a text, each on its line")
        context, question = f"{found[1]}: {found[2]}", f"What comes next? {found[3]}"
    else:
        instruction, colon, text = row.prompt.partition(": ")
        if not colon:
            raise _bad_prompt(row, "an instruction, a colon and a text")
        context, question = f"{instruction}.", f"What comes next? {text}"
    answer = int(row.answer_index)
    return Draft(
        number=row.number,
        id=f"{key}-{row.number}",
        relation="factual",
        context=context,
        question=question,
        options=options,
        answers=[options[answer]],
        subset="conflict",
        habit=[options[1 - answer]],
    )


def _bad_prompt(row: _Row, expected: str) -> BadRowError:
    return BadRowError.at("prompt", row.prompt, expected)


def _science(row: _Row) -> tuple[str, str, list[str]]:
    """Event, question and the two options, all from the prompt; the classes are the options' letters."""
    asked = _SCIENCE.fullmatch(row.prompt)
    if not asked or row.classes != ["A", "B"]:
        raise _bad_prompt(row, "a question, options A and B, 'Answer:', and classes A and B")
    if found := _BEFORE_EVENT.fullmatch(asked[1]):
        return found[2], f"{found[1]}?", [asked[2], asked[3]]
    if found := _AFTER_EVENT.fullmatch(asked[1]):
        return found[1], found[2], [asked[2], asked[3]]
    raise _bad_prompt(row, "an event and a question about it")


MEMOTRAP = source(__file__, read=read, options=MemoTrapOptions)
