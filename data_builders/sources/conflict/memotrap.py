"""MemoTrap (Liu & Liu, Inverse Scaling Prize 2023): an instruction asks for an ending other than the well-known one.

Every row is a `conflict`: the answer is the ending that the instruction asks for, the habit the other one. The
instruction becomes the context, and the text to continue becomes the question, so a sample without its context asks
for the habit only. Tables, pages and logs show the file of hateful sentences on request only (`hate_speech=true`).
"""

import ast
import re
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from data_builders.raw.source import source
from data_builders.sources.reading import Job, SplitRows, SplitSamples, to_samples
from data_builders.sources.rows import BadRowError, Draft, Form, RawRow, SourceOptions, Text, columns

# Pattern of a prompt → its context and its question, made of the pattern's groups.
_Forms = list[tuple[str, str, str]]
_ENDING: _Forms = [(r"(.*?): (.*)", "{0}.", "What comes next? {1}")]
_OPTIONS = r"\nA\. (.+)\nB\. (.+)\nAnswer:"
_FORMS: dict[str, _Forms] = {
    "endings": _ENDING,
    "translations": [
        (
            r"(Translate the following sentence from \w+ into English)\.\n(.+)\nto:\n(.+)",
            "{0}: {1}",
            "What comes next? {2}",
        )
    ],
    "hate_speech": _ENDING,
    # The question about the history of science is before the event or after it.
    "science": [
        (rf"(What was [^.:]+? the following event): (.+?){_OPTIONS}", "{1}", "{0}?"),
        (rf"(.+) ((?:Before|Prior to|What was)[^.]+\?){_OPTIONS}", "{0}", "{1}"),
    ],
}


class MemoTrapOptions(SourceOptions):
    """Options of MemoTrap; `hate_speech` also reads the file of hateful sentences and their reversals."""

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


def read(job: Job) -> SplitSamples:
    """Read the test (2,439 rows, all conflict; with `hate_speech` 2,539)."""
    options: MemoTrapOptions = job.options
    inputs = {key: job.input(key, "test") for key in _FORMS}
    rows = SplitRows(
        [
            draft
            for key, raw in inputs.items()
            for draft in Form(_Row, partial(_draft, key), lambda raw: raw.csv_rows(columns(_Row))).read(raw)
        ]
    )
    if not options.hate_speech:
        rows.keep(
            "no hateful sentences",
            "3-hate-speech-ending.csv is read on request only (hate_speech=true)",
            [draft for draft in rows.rows if draft.extra["file"] != "hate_speech"],
        )
    return {"test": to_samples(lambda draft: inputs[draft.extra["file"]], rows)}


def _draft(key: str, row: _Row) -> Draft:
    answer = int(row.answer_index)
    for pattern, context, question in _FORMS[key]:
        match = re.fullmatch(pattern, row.prompt, re.DOTALL)
        if match is None or (key == "science" and row.classes != ["A", "B"]):
            continue
        parts = match.groups()
        options = list(parts[2:]) if key == "science" else row.classes
        return row.draft(
            id=f"{key}-{row.number}",
            relation="factual",
            context=context.format(*parts),
            question=question.format(*parts),
            options=options,
            answers=[options[answer]],
            subset="conflict",
            habit=[options[1 - answer]],
            extra={"file": key},
        )
    expected = "an instruction and a text, or an event and a question about it with the options A and B"
    raise BadRowError.at("prompt", row.prompt, expected)


MEMOTRAP = source(__file__, read, options=MemoTrapOptions)
