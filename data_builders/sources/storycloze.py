"""Story Cloze Test (Mostafazadeh et al., NAACL 2016): which of two sentences ends a story of four?

PIPER uses it as an out-of-distribution test (appendix G, "SCT"). Its authors give the files out on request only, so
the user puts the CSV file into the raw folder. PIPER names no relation: the right sentence tells what happens next, so
the rows count as temporal.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from data_builders.raw.reader import Draft
from data_builders.sources.facts import source
from data_builders.sources.rows import Form, RawRow, Text, columns, read_splits


class _Row(RawRow):
    InputStoryid: Text
    InputSentence1: Text
    InputSentence2: Text
    InputSentence3: Text
    InputSentence4: Text
    RandomFifthSentenceQuiz1: Text
    RandomFifthSentenceQuiz2: Text
    AnswerRightEnding: Literal["1", "2"]


def _draft(row: _Row) -> Draft:
    endings = [row.RandomFifthSentenceQuiz1, row.RandomFifthSentenceQuiz2]
    return Draft(
        number=row.number,
        relation="temporal",
        context=f"{row.InputSentence1} {row.InputSentence2} {row.InputSentence3} {row.InputSentence4}",
        question="Which sentence is the right ending of the story?",
        options=endings,
        answers=[endings[int(row.AnswerRightEnding) - 1]],
        meta={"story_id": row.InputStoryid},
    )


STORYCLOZE = source(
    __file__, read=partial(read_splits, form=Form(_Row, _draft, lambda raw: raw.csv_rows(columns(_Row))))
)
