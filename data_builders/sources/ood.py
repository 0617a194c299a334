"""PIPER's out-of-distribution tests (appendix G): αNLI, SocialIQA and the Story Cloze Test, each a choice of options.

The labels of αNLI's (Bhagavatula et al., ICLR 2020) and SocialIQA's (Sap et al., EMNLP 2019) tests are hidden, so the
development files are read (1,532 and 1,954 rows). The Story Cloze Test (Mostafazadeh et al., NAACL 2016) is given out
on request only. PIPER names no relations: endings of a story count as temporal, explanations and reasons as causal.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, get_args

from pydantic import Field

from d2e_sft.util.errors import UserError
from data_builders.raw.source import source
from data_builders.sources.reading import Job, SplitSamples, read_splits, reader
from data_builders.sources.rows import Draft, Form, M, RawInput, RawRow, Row, Text, clean, columns

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


def _alphanli(row: _AlphaNLI) -> Draft:
    options = [row.hyp1, row.hyp2]
    return row.draft(
        relation="causal",
        context=f"First observation: {row.obs1}\nSecond observation: {row.obs2}",
        # The question names neither observation, so the imagined view, which has no context, does not show them.
        question="What happened between the first observation and the second observation, and explains the second?",
        options=options,
        answers=[options[int(row.label) - 1]],
        meta={"story_id": row.story_id},
    )


def _socialiqa(row: _SocialIQA) -> Draft:
    answers = [row.answer1, row.answer2, row.answer3]
    options = dict.fromkeys(answers)  # five published rows offer an answer twice
    return row.draft(relation="causal", options=options, answers=[answers[int(row.label) - 1]])


def _storycloze(row: _StoryCloze) -> Draft:
    endings = [row.RandomFifthSentenceQuiz1, row.RandomFifthSentenceQuiz2]
    return row.draft(
        relation="temporal",
        context=f"{row.InputSentence1} {row.InputSentence2} {row.InputSentence3} {row.InputSentence4}",
        question="Which sentence is the right ending of the story?",
        options=endings,
        answers=[endings[int(row.AnswerRightEnding) - 1]],
        meta={"story_id": row.InputStoryid},
    )


def _with_labels(model: type[M], draft: Callable[[M], Draft]) -> Callable[[Job], SplitSamples]:
    """Read rows whose labels are in a file of their own, on the same lines.

    Labels that the model does not list are bad rows of that file. UserError if a line has a row but no label, or a
    label but no row: then no label can be trusted.
    """

    def rows(raw: RawInput, labels: RawInput) -> Iterator[Row]:
        choices = get_args(model.model_fields["label"].annotation)
        by_number, lines = {row.number: row.fields for row in raw.json_lines()}, list(labels.lines())
        if unpaired := set(raw.numbers) ^ set(labels.numbers):
            raise UserError(
                f"{labels.path}: {len(labels.numbers):,} labels for {len(raw.numbers):,} rows of {raw.path}; expected "
                f"a label on the line of each row, but only one of the files has line {min(unpaired):,}",
                remedy="take both files from the same release",
            )
        for line in lines:
            if (label := clean(line.text)) not in choices:
                labels.reject(line.number, line.text, f"label: got {label!r}; expected one of {', '.join(choices)}")
            elif line.number in by_number:
                yield Row(line.number, {**by_number[line.number], "label": label})

    return lambda job: read_splits(job, Form(model, draft, lambda raw: rows(raw, job.input("labels", "test"))))


ALPHANLI = source(_FACTS("alphanli"), _with_labels(_AlphaNLI, _alphanli))
SOCIALIQA = source(_FACTS("socialiqa"), _with_labels(_SocialIQA, _socialiqa))
_CSV = Form(_StoryCloze, _storycloze, lambda raw: raw.csv_rows(columns(_StoryCloze)))
STORYCLOZE = source(_FACTS("storycloze"), reader(_CSV))
