"""Promises of every row of every source: clean texts, a question that asks, an answer that its format allows.

Each source is read from the small raw files and, if they are available, from the published ones.
"""

from __future__ import annotations

import re

import pytest

from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import EventSample
from data_builders.raw.characters import decode_characters
from data_builders.sources import SOURCES
from tests.data_builders.reading import rows_of_split

SETTINGS = {
    "boxes": ("boxes=3", "operations=2", "train_samples=200", "test_samples=50"),
    "habit": ("train_samples=20", "dev_samples=10", "test_samples=10"),
}
# This package words the questions of these; people or the publishers' templates word the others.
WORDED_HERE = ("boxes", "cqa", "crepe", "habit", "matres", "openpi2")
# All questions of these end with a question mark; others are hypotheses or search queries, or some lack it.
END_WITH_A_MARK = ("alphanli", "boxes", "cpi_facts", "cqa", "ecare", "ester", "habit", "ifqa", "matres", "tempreason")
# Free-text answers that must be in the context: one of the accepted answers, or every part of the answer.
ANY_ANSWER_IN_CONTEXT = ("nq_swap", "timeqa")
EVERY_ANSWER_IN_CONTEXT = ("cqa", "ester", "habit")

# Independent of `decode_characters`.
_LEFT_OVER = re.compile(r'&#\w+;|&(amp|quot|lt|gt|nbsp|apos);|"{4,}|\'{4,}|[\0-\t\v-\x1f\x7f-\x9f\ufffd鈥]')
_DOUBLED_WORD = re.compile(r"\b([a-z]{2,}) \1\b")  # names repeat words too ("Buy Buy Baby")


@pytest.fixture(params=["small", "published"])
def samples(request: pytest.FixtureRequest, name: str) -> list[EventSample]:
    """The rows of a source from the small or the published raw files."""
    small = request.param == "small"
    if not small and not SOURCES[name].inputs:
        pytest.skip("generated: there are no published files")
    folder = request.getfixturevalue("raw" if small else "published_raw")
    settings = SETTINGS.get(name, ())
    found = [row for split in SOURCES[name].splits for row in rows_of_split(folder, name, split, *settings)]
    if not found:
        pytest.skip(f"no raw file of {name}")
    return found


every_source = pytest.mark.parametrize("name", SOURCES)


@every_source
def test_texts_have_no_traces_of_their_files(samples: list[EventSample]) -> None:
    for sample in samples:
        for text in (sample.context, sample.question, *sample.options, *sample.answers, *sample.habit):
            assert decode_characters(text) == (text, frozenset()), sample.id
            assert not _LEFT_OVER.search(text), sample.id


@every_source
def test_questions_ask(name: str, samples: list[EventSample]) -> None:
    for sample in samples:
        assert sample.question == sample.question.strip(), sample.id
        assert sample.context not in sample.question or not sample.context, sample.id
        if name in END_WITH_A_MARK:
            assert sample.question.endswith(("?", '?"')), (sample.id, sample.question)
        if name in WORDED_HERE:
            assert not _DOUBLED_WORD.search(sample.question), (sample.id, sample.question)
            assert sample.question[0].isupper(), (sample.id, sample.question)
            assert sample.question.count("(") == sample.question.count(")"), (sample.id, sample.question)
        if name == "cqa":
            assert ("if it were not for" in sample.question) == (sample.relation == "counterfactual"), sample.id


@every_source
def test_answers_are_where_the_format_has_them(name: str, samples: list[EventSample]) -> None:
    for sample in samples:
        context = sample.context.casefold()
        assert not sample.candidates or set(sample.answers) <= set(sample.candidates), sample.id
        if name in ANY_ANSWER_IN_CONTEXT:
            assert any(answer.casefold() in context for answer in sample.answers), sample.id
        if name in EVERY_ANSWER_IN_CONTEXT:
            parts = sample.meta.get("spans", sample.answers)
            assert all(part.casefold() in context for part in parts), sample.id


@every_source
def test_the_imagined_view_shows_neither_context_nor_answer(name: str, samples: list[EventSample]) -> None:
    wording = load_prompt_set("default")
    for sample in samples[:: max(1, len(samples) // 500)]:
        another = sample.model_copy(update={"context": "Another text.", "refined_context": None, "answers": ["x"]})
        shown = wording.messages(sample, "imagined")
        assert shown == wording.messages(another, "imagined"), sample.id
        if name in WORDED_HERE and not sample.options:
            assert not any(answer.casefold() in sample.question.casefold() for answer in sample.answers), sample.id
