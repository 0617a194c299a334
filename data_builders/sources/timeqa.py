"""TimeQA, hard split (Chen et al., NeurIPS 2021): who held which role at a time that the page implies?

The context is a whole Wikipedia page, thousands of words in most rows. PIPER reports 630 test samples and no rule:
a limit of about 1,000 words on pages that hold the answer would give a number like that (an estimate). For training,
whole pages within the limit are few, so by default a row keeps the sentence that holds its answer and as many of
the sentences around it as fit. A page is one line of text, in which headings and lists run into the sentences; where
a list holds the answer and is too long to be one sentence of an excerpt, the excerpt is made of the published
`paragraphs`, which are chunks of about 100 words and may begin and end within a sentence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from d2e_sft.data.sample import Split
from data_builders.raw.reader import Draft, RawInput
from data_builders.raw.row import BadRowError, Row, clean, shown
from data_builders.raw.source import Input, Job, Samples, Source, SourceOptions, SplitRows, github
from data_builders.sources.rows import TIMEBENCH_FILES, not_in_test
from data_builders.text.excerpts import chunk_spans, excerpt
from data_builders.text.texts import contains_any, word_count

_FILES = github("wenhuchen/Time-Sensitive-QA", "38b05989070c1168b2bef3d5a2656afeeba763dc", "dataset")

# Files without a checksum: only second-hand ones are known, and a wrong one would refuse a good download.
TRAIN = _FILES.file("train.hard.json.gzip")
HUMAN_TRAIN = _FILES.file(
    "human_train.hard.json.gzip",
    "454aecd48bc5dcdcb00635706cbb53f0036ab5ec0d17cff185740eaaa2e922b3",
    3_188_862,
    substitute="the 1,171 training rows that people annotated, in place of the whole training file",
)
TEST = _FILES.file("test.hard.json")
TIMEBENCH = TIMEBENCH_FILES.file(
    "timeqa_hard_500.jsonl",
    "cce62c1fb7d1a41eb46e434c583a5e3640516ab62e6f7625581a0d7026f83ca1",
    888_601,
    path="TimeBench-full-19000.zip",
    member="TimeBench-full-19000/event-time/timeqa/timeqa_hard_500.jsonl",
    substitute="TimeBench's 500 of the hard test questions, with excerpts of the pages (109 to 471 words)",
)


class TimeQAOptions(SourceOptions):
    """Options of TimeQA.

    Attributes:
        context: what a training sample shows: the sentences around the answer or the whole page.
        max_words: the most words of a training context; None sets no limit.
        test_max_words: test questions on a longer page are left out; None keeps all.
    """

    context: Literal["excerpt", "page"] = "excerpt"
    max_words: int | None = Field(600, ge=1)
    test_max_words: int | None = Field(1000, ge=1)


@dataclass(frozen=True, kw_only=True)
class _Row(Draft):
    """One question; `context` is None where nothing short enough holds the answer."""

    answer_found: bool
    page: str


def read(job: Job) -> dict[Split, Samples]:
    """Build train and test (published: 630 test questions)."""
    options = job.options
    assert isinstance(options, TimeQAOptions)
    raw = job.input("test")
    is_excerpt = job.file("test") is TIMEBENCH
    limit = None if is_excerpt else options.test_max_words
    test = SplitRows(raw.parse(raw.json_lines(), _parse_timebench if is_excerpt else _parse_whole_page(limit)))
    test_rows = test.rows
    result: dict[Split, Samples] = {"test": _finish(raw, test, f"page of at most {limit} words" if limit else "")}
    if not job.wants("train"):
        return result

    raw, limit, what = job.input("train"), options.max_words, options.context
    train = SplitRows(raw.parse(raw.json_lines(), (_parse_whole_page if what == "page" else _parse_excerpt)(limit)))
    train.keep(
        "pages of the test",
        "the question is about a page that the test file has too",
        not_in_test(train.rows, test_rows, lambda row: row.page),
    )
    result["train"] = _finish(raw, train, f"{what} of at most {limit} words" if limit else "")
    return result


def _finish(raw: RawInput, rows: SplitRows[_Row], limit: str) -> Samples:
    rows.keep(
        "answerable",
        "the publishers give the empty text as the answer of questions that the page cannot answer",
        [row for row in rows.rows if row.answers],
    )
    rows.keep(
        "answer in the context",
        "PIPER leaves out samples whose ground truth is absent from the context; letter case is ignored",
        [row for row in rows.rows if row.answer_found],
    )
    if limit:
        rows.keep(
            limit,
            "PIPER leaves out excessively long contexts; its limit for TimeQA is not published",
            [row for row in rows.rows if row.context is not None],
        )
    return rows.become(raw.parse(rows.rows, raw.sample))


# Texts that will be left out are dropped while reading: the pages of the training file fill hundreds of megabytes.
_Parser = Callable[[Row], _Row]


def _parse_timebench(row: Row) -> _Row:
    context = row.text("context")
    return _row(row, _answers(row, "answer"), context, context)


def _parse_whole_page(limit: int | None) -> _Parser:
    def parse(row: Row) -> _Row:
        page = row.text("context")
        fits = limit is None or word_count(page) <= limit
        return _row(row, _answers(row, "targets"), page, page if fits else None)

    return parse


def _parse_excerpt(limit: int | None) -> _Parser:
    def parse(row: Row) -> _Row:
        row.text("context")
        page: str = row.fields["context"]  # as it is: the offsets count its blanks
        answers = _answers(row, "targets")
        chosen = None
        if answers:
            place, chunks = _place(row, page), chunk_spans(page, _chunks(row))
            chosen = clean(excerpt(page, chunks, place, limit) or "") or None
        shown = [answer for answer in answers if chosen is not None and contains_any(chosen, [answer])]
        return _row(row, shown or answers, chosen or page, chosen)

    return parse


def _row(row: Row, answers: list[str], searched: str, context: str | None) -> _Row:
    index = row.text("idx")
    return _Row(
        number=row.number,
        relation="temporal",
        context=context,
        question=row.text("question"),
        answers=answers,
        meta={"idx": index},
        answer_found=contains_any(searched, answers),
        page=index.partition("#")[0],
    )


def _answers(row: Row, name: str) -> list[str]:
    answers = row.texts(name)
    if not answers:
        raise row.error(name, "at least one text ('' where the page has no answer)")
    return list(dict.fromkeys(filter(None, answers)))


def _place(row: Row, page: str) -> tuple[int, int]:
    """(start, end) in the page of the first target that is not empty; the places of all are checked."""
    targets, starts, ends = (row.get(name) for name in ("targets", "from", "end"))
    for name, value in (("from", starts), ("end", ends)):
        if not isinstance(value, list) or len(value) != len(targets):
            raise BadRowError.at(name, value, f"a list of as many positions as there are targets ({len(targets)})")
    for number, (target, start, end) in enumerate(zip(targets, starts, ends, strict=True)):
        if type(start) is not int or type(end) is not int or not 0 <= start <= end <= len(page):
            expected = f"positions in the context of {len(page):,} characters"
            raise BadRowError.at(f"from.{number}, end.{number}", (start, end), expected)
        if clean(page[start:end]).casefold() != clean(target).casefold():
            found = f"the place of {shown(target)}, but {shown(page[start:end])} stands there"
            raise BadRowError.at(f"from.{number}, end.{number}", (start, end), found)
    return next((start, end) for target, start, end in zip(targets, starts, ends, strict=True) if clean(target))


def _chunks(row: Row) -> list[str]:
    chunks = row.get("paragraphs")
    if not isinstance(chunks, list) or not chunks:
        raise row.error("paragraphs", "the page's paragraphs, a list of objects with a text")
    for number, chunk in enumerate(chunks):
        if not isinstance(chunk, dict) or not isinstance(chunk.get("text"), str):
            raise BadRowError.at(f"paragraphs.{number}", chunk, "an object with a text")
    return [chunk["text"].strip() for chunk in chunks]


TIMEQA = Source(
    name="timeqa",
    format="qa",
    licence="BSD-3-Clause",
    homepage="https://github.com/wenhuchen/Time-Sensitive-QA",
    inputs=(Input("train", (TRAIN, HUMAN_TRAIN), ("train",)), Input("test", (TEST, TIMEBENCH), ("train", "test"))),
    read=read,
    options=TimeQAOptions,
    notes={
        "count": "630 is the published number of test questions, and the rule that gives it is not published; with "
        "whole pages test_max_words decides, with TimeBench's excerpts nothing does",
        "train": "context=excerpt shows the sentences around the answer, so a model never sees a page in which the "
        "answer is far away; where a long list holds the answer, chunks of about 100 words in their place",
    },
)
