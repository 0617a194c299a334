"""Story Cloze Test (Mostafazadeh et al., NAACL 2016): which of two sentences ends a story of four?

PIPER evaluates on it out of distribution (appendix G, "SCT"). Its authors hand the files out on request only, so
there is nothing to download: the user puts the CSV file where the builder looks. PIPER does not say which relation
it belongs to: the right sentence tells what happens next, so it counts as temporal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from d2e_sft.data.sample import EventSample, Split
from data_builders.raw.bad_rows import BadRowError
from data_builders.raw.fields import choice_field, clean, text_field
from data_builders.raw.reader import RawInput
from data_builders.raw.source import Input, Job, RawFile, Source, SplitRows

_FOLDER = "ood/storycloze"
_LICENCE = "handed out by the authors on request"
_BY_HAND = "request it with the form at https://www.cs.rochester.edu/nlp/rocstories/"
_VALIDATION = "the validation file in place of the test file"

# The names are those under which the authors' files circulate.
CANDIDATES = (
    RawFile(name="cloze_test_test__spring2016 - cloze_test_ALL_test.csv", by_hand=_BY_HAND),
    RawFile(name="cloze_test_test__spring2016.csv", by_hand=_BY_HAND),
    RawFile(name="cloze_test_val__spring2016 - cloze_test_ALL_val.csv", by_hand=_BY_HAND, substitute=_VALIDATION),
    RawFile(name="cloze_test_val__spring2016.csv", by_hand=_BY_HAND, substitute=_VALIDATION),
)

_STORY = ("InputSentence1", "InputSentence2", "InputSentence3", "InputSentence4")
_ENDINGS = ("RandomFifthSentenceQuiz1", "RandomFifthSentenceQuiz2")
_COLUMNS = ("InputStoryid", *_STORY, *_ENDINGS, "AnswerRightEnding")

QUESTION = "Which sentence is the right ending of the story?"


@dataclass(frozen=True)
class _Row:
    line: int
    story: str
    context: str
    endings: tuple[str, ...]
    answer: str


def read(job: Job) -> dict[Split, SplitRows]:
    """Build test."""
    raw = job.input("test", "test", folder=_FOLDER)
    rows = raw.parse(raw.csv_rows(_COLUMNS), _parse)
    result = SplitRows([], rows_read=len(rows))
    result.samples = raw.samples(rows, lambda row: _sample(raw, row))
    return {"test": result}


def _parse(line: int, row: dict[str, Any]) -> _Row:
    endings = tuple(text_field(row, name) for name in _ENDINGS)
    if endings[0] == endings[1]:
        raise BadRowError.at(_ENDINGS[1], endings[1], f"an ending that differs from {_ENDINGS[0]}")
    label = choice_field("AnswerRightEnding", clean(row["AnswerRightEnding"]), ("1", "2"))
    story = " ".join(text_field(row, name) for name in _STORY)
    return _Row(line, text_field(row, "InputStoryid"), story, endings, endings[int(label) - 1])


def _sample(raw: RawInput, row: _Row) -> EventSample:
    return EventSample(
        id=f"storycloze-{raw.split}-{row.line}",
        dataset="storycloze",
        split=raw.split,
        relation="temporal",
        format="scq",
        context=row.context,
        question=QUESTION,
        options=list(row.endings),
        answers=[row.answer],
        meta={"source": raw.name, "line": row.line, "story_id": row.story, "licence": _LICENCE},
    )


STORYCLOZE = Source(
    name="storycloze",
    format="scq",
    licence=_LICENCE,
    homepage="https://www.cs.rochester.edu/nlp/rocstories/",
    inputs=(Input("test", CANDIDATES, ("test",)),),
    read=read,
    folder=_FOLDER,
    redistribution="the authors hand the files out on request only",
    splits=("test",),
    notes={
        "test": "out of distribution: nothing of it is trained on",
        "relation": "temporal is this project's choice; PIPER gives none",
    },
)
