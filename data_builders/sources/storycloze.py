"""Story Cloze Test (Mostafazadeh et al., NAACL 2016): which of two sentences ends a story of four?

PIPER evaluates on it out of distribution (appendix G, "SCT"). Its authors hand the files out on request only, so
there is nothing to download: the user puts the CSV file where the builder looks. PIPER does not say which relation
it belongs to: the right sentence tells what happens next, so it counts as temporal.
"""

from __future__ import annotations

from d2e_sft.data.sample import Split
from data_builders.raw.reader import Draft
from data_builders.raw.row import Row, clean, one_of
from data_builders.raw.source import Input, Job, RawFile, Samples, Source, SplitRows

_FOLDER = "ood/storycloze"
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


def read(job: Job) -> dict[Split, Samples]:
    """Build test."""
    raw = job.input("test")
    return {"test": SplitRows(raw.parse(raw.csv_rows(_COLUMNS), lambda row: raw.sample(_parse(row))))}


def _parse(row: Row) -> Draft:
    endings = [row.text(name) for name in _ENDINGS]
    if endings[0] == endings[1]:
        raise row.error(_ENDINGS[1], f"an ending that differs from {_ENDINGS[0]}", endings[1])
    label = one_of("AnswerRightEnding", clean(row.fields["AnswerRightEnding"]), ("1", "2"))
    return Draft(
        number=row.number,
        relation="temporal",
        context=" ".join(row.text(name) for name in _STORY),
        question=QUESTION,
        options=endings,
        answers=[endings[int(label) - 1]],
        meta={"story_id": row.text("InputStoryid")},
    )


STORYCLOZE = Source(
    name="storycloze",
    format="scq",
    licence="handed out by the authors on request",
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
