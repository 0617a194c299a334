"""MemoTrap (Liu & Liu, Inverse Scaling Prize 2023): an instruction asks for another ending than the well-known one.

Every row is a `conflict`: the answer is the ending that the instruction asks for, the habit the other one. The
instruction becomes the context, and the text to be continued the question, so that without its context a sample
asks for the habit alone.

The third file holds hateful sentences and their reversals. It is left out unless `hate_speech=true`, so that no table,
page or log shows them unasked.
"""

from __future__ import annotations

import ast
import re
from functools import partial

from d2e_sft.data.sample import Split
from data_builders.raw.reader import Draft
from data_builders.raw.row import Row, clean, one_of
from data_builders.raw.source import Input, Job, Samples, Source, SourceOptions, SplitRows, github

_FILES = github("liujch1998/memo-trap", "d87b26abf4402b76d167d1326798d21d7ea2127e", "data")
FILES = {
    "endings": _FILES.file(
        "1-proverb-ending.csv", "e6d1b4e6ec6bc90c22afb9138bafbdf276fbe252be705d44ff16fdb44d50bae7", 95_161
    ),
    "translations": _FILES.file(
        "2-proverb-translation.csv", "2f78d1d18d80d839a36eaaa0143f7aacb73a827c2422d21a7ddf0c60400d5033", 155_972
    ),
    "hate_speech": _FILES.file(
        "3-hate-speech-ending.csv", "e9d020f85703f62fc56643f1fd5f3cae7deffaa6860017f8f4be278a7e09a36e", 22_509
    ),
    "science": _FILES.file(
        "4-history-of-science-qa.csv", "32144d7411aff7558ac8c64ba676e407e3e2931dea03f4154a521b373f5f962b", 243_707
    ),
}
_COLUMNS = ("prompt", "classes", "answer_index")
_TRANSLATION = re.compile(r"(Translate the following sentence from \w+ into English)\.\n(.+)\nto:\n(.+)", re.DOTALL)
_SCIENCE = re.compile(r"(.+?)\nA\. (.+)\nB\. (.+)\nAnswer:", re.DOTALL)
# The question of the history of science stands before the event, or after it.
_BEFORE_EVENT = re.compile(r"(What was [^.:]+? the following event): (.+)", re.DOTALL)
_AFTER_EVENT = re.compile(r"(.+) ((?:Before|Prior to|What was)[^.]+\?)", re.DOTALL)


class MemoTrapOptions(SourceOptions):
    """Options of MemoTrap.

    Attributes:
        hate_speech: whether the file of hateful sentences and their reversals is read, too.
    """

    hate_speech: bool = False


def read(job: Job) -> dict[Split, Samples]:
    """Build test (2,439 rows, all conflict; with `hate_speech` 2,539)."""
    assert isinstance(job.options, MemoTrapOptions)
    inputs = {key: job.input(key, "test") for key in FILES}
    drafts = {key: raw.parse(raw.csv_rows(_COLUMNS), partial(_parse, key)) for key, raw in inputs.items()}
    rows = SplitRows([(raw, draft) for key, raw in inputs.items() for draft in drafts[key]])
    if not job.options.hate_speech:
        rows.keep(
            "no hateful sentences",
            "3-hate-speech-ending.csv is read on request alone (hate_speech=true)",
            [(raw, draft) for raw, draft in rows.rows if raw is not inputs["hate_speech"]],
        )
    return {"test": rows.become([sample for raw, draft in rows.rows for sample in raw.parse([draft], raw.sample)])}


def _parse(key: str, row: Row) -> Draft:
    prompt, classes = row.text("prompt"), _classes(row)
    if key == "science":
        context, question, classes = _science(row, prompt, classes)
    elif key == "translations":
        found = _TRANSLATION.fullmatch(prompt)
        if not found:
            raise row.error("prompt", "'Translate … into English.', a sentence, 'to:' and a text, each on its line")
        context, question = f"{found[1]}: {found[2]}", _continue(found[3])
    else:
        instruction, colon, text = prompt.partition(": ")
        if not colon:
            raise row.error("prompt", "an instruction, a colon and a text")
        context, question = f"{instruction}.", _continue(text)
    answer = int(one_of("answer_index", clean(row.fields["answer_index"]), ("0", "1")))
    return Draft(
        number=row.number,
        id=f"{key}-{row.number}",
        relation="factual",
        context=context,
        question=question,
        options=classes,
        answers=[classes[answer]],
        subset="conflict",
        habit=[classes[1 - answer]],
    )


def _continue(text: str) -> str:
    return f"What comes next? {text}"


def _classes(row: Row) -> list[str]:
    """The two endings, which the file gives as a list in Python's notation."""
    try:
        classes = ast.literal_eval(row.text("classes"))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        classes = None
    if not isinstance(classes, list) or not all(isinstance(item, str) and item.strip() for item in classes):
        raise row.error("classes", "a list of two texts in Python's notation")
    endings = [clean(item) for item in classes]
    if len(endings) != 2 or endings[0] == endings[1]:
        raise row.error("classes", "two different endings")
    return endings


def _science(row: Row, prompt: str, classes: list[str]) -> tuple[str, str, list[str]]:
    """Event, question and the two options, which the prompt holds and of which the classes are the letters."""
    asked = _SCIENCE.fullmatch(prompt)
    text = asked[1] if asked else ""
    if not asked or classes != ["A", "B"]:
        raise row.error("prompt", "a question, options A and B, 'Answer:', and classes that are these letters")
    if found := _BEFORE_EVENT.fullmatch(text):
        return found[2], f"{found[1]}?", [asked[2], asked[3]]
    if found := _AFTER_EVENT.fullmatch(text):
        return found[1], found[2], [asked[2], asked[3]]
    raise row.error("prompt", "an event and a question about it")


MEMOTRAP = Source(
    name="memotrap",
    format="scq",
    licence="MIT",
    homepage="https://github.com/liujch1998/memo-trap",
    folder="conflict/memotrap",
    inputs=tuple(Input(key, (file,), ("test",)) for key, file in FILES.items()),
    splits=("test",),
    read=read,
    options=MemoTrapOptions,
    notes={
        "count": "the 100 hateful sentences are read on request alone (hate_speech=true)",
        "mapping": "the instruction is the context, the text to be continued the question; of the history of science "
        "the event is the context and the options are the texts behind A and B",
        "repeats": "the history of science asks each of 92 facts in 8 ways",
    },
)
