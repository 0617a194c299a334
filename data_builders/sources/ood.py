"""PIPER's out-of-distribution tests (appendix G): αNLI, SocialIQA and the Story Cloze Test, each a choice of options.

The labels of αNLI's (Bhagavatula et al., ICLR 2020) and SocialIQA's (Sap et al., EMNLP 2019) tests are hidden, so the
development files are read (1,532 and 1,954 rows). The Story Cloze Test (Mostafazadeh et al., NAACL 2016) is given out
on request only. PIPER names no relations: endings of a story count as temporal, explanations and reasons as causal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import Field

from d2e_sft.data.sample import Relation
from data_builders.raw.facts import source
from data_builders.raw.row import Draft
from data_builders.raw.source import Job, SplitSamples
from data_builders.sources.filters import read_splits, reader
from data_builders.sources.rows import Form, M, RawRow, Text, columns, labelled

_FACTS = Path(__file__).with_name


class _AlphaNLI(RawRow):
    story_id: Text
    obs1: Text
    obs2: Text
    hyp1: Text
    hyp2: Text
    label: Literal["1", "2"]


class _SocialIQA(RawRow):
    context: Text
    question: Text
    answer1: Text = Field(alias="answerA")
    answer2: Text = Field(alias="answerB")
    answer3: Text = Field(alias="answerC")
    label: Literal["1", "2", "3"]


class _StoryCloze(RawRow):
    InputStoryid: Text
    InputSentence1: Text
    InputSentence2: Text
    InputSentence3: Text
    InputSentence4: Text
    RandomFifthSentenceQuiz1: Text
    RandomFifthSentenceQuiz2: Text
    AnswerRightEnding: Literal["1", "2"]


def _choice(relation: Relation, number: int, context: str, question: str, options: list[str], label: str) -> Draft:
    right = [options[int(label) - 1]]
    return Draft(number=number, relation=relation, context=context, question=question, options=options, answers=right)


def _alphanli(row: _AlphaNLI) -> Draft:
    context = f"First observation: {row.obs1}\nSecond observation: {row.obs2}"
    # The question names neither observation, so the imagined view, which has no context, does not show them.
    question = "What happened between the first observation and the second observation, and explains the second?"
    draft = _choice("causal", row.number, context, question, [row.hyp1, row.hyp2], row.label)
    return replace(draft, meta={"story_id": row.story_id})


def _socialiqa(row: _SocialIQA) -> Draft:
    options = [row.answer1, row.answer2, row.answer3]
    draft = _choice("causal", row.number, row.context, row.question, options, row.label)
    return replace(draft, options=dict.fromkeys(options))  # five published rows offer an answer twice


def _storycloze(row: _StoryCloze) -> Draft:
    context = f"{row.InputSentence1} {row.InputSentence2} {row.InputSentence3} {row.InputSentence4}"
    question = "Which sentence is the right ending of the story?"
    endings = [row.RandomFifthSentenceQuiz1, row.RandomFifthSentenceQuiz2]
    draft = _choice("temporal", row.number, context, question, endings, row.AnswerRightEnding)
    return replace(draft, meta={"story_id": row.InputStoryid})


def _with_labels(row: type[M], draft: Callable[[M], Draft]) -> Callable[[Job], SplitSamples]:
    """Read rows whose labels are in a file of their own."""
    return lambda job: read_splits(job, Form(row, draft, lambda raw: labelled(row, raw, job.input("labels", "test"))))


ALPHANLI = source(_FACTS("alphanli"), _with_labels(_AlphaNLI, _alphanli))
SOCIALIQA = source(_FACTS("socialiqa"), _with_labels(_SocialIQA, _socialiqa))
_CSV = Form(_StoryCloze, _storycloze, lambda raw: raw.csv_rows(columns(_StoryCloze)))
STORYCLOZE = source(_FACTS("storycloze"), reader(_CSV))
