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
from typing import Any, Literal

from pydantic import Field

from d2e_sft.data.sample import EventSample, Split
from data_builders.raw.bad_rows import MISSING, BadRowError, shown
from data_builders.raw.fields import clean, text_field, text_list
from data_builders.raw.reader import RawInput
from data_builders.raw.source import Input, Job, RawFile, Source, SourceOptions, SplitRows
from data_builders.sources.rows import not_in_test
from data_builders.text.excerpts import chunk_spans, excerpt
from data_builders.text.texts import contains_any, word_count

_COMMIT = "38b05989070c1168b2bef3d5a2656afeeba763dc"
_URL = f"https://raw.githubusercontent.com/wenhuchen/Time-Sensitive-QA/{_COMMIT}/dataset"
_LICENCE = "BSD-3-Clause"

# Files without a checksum: only second-hand ones are known, and a wrong one would refuse a good download.
TRAIN = RawFile(name="train.hard.json.gzip", url=f"{_URL}/train.hard.json.gzip", commit=_COMMIT)
HUMAN_TRAIN = RawFile(
    name="human_train.hard.json.gzip",
    url=f"{_URL}/human_train.hard.json.gzip",
    commit=_COMMIT,
    sha256="454aecd48bc5dcdcb00635706cbb53f0036ab5ec0d17cff185740eaaa2e922b3",
    bytes=3_188_862,
    substitute="the 1,171 training rows that people annotated, in place of the whole training file",
)
TEST = RawFile(name="test.hard.json", url=f"{_URL}/test.hard.json", commit=_COMMIT)
TIMEBENCH = RawFile(
    name="timeqa_hard_500.jsonl",
    url="https://raw.githubusercontent.com/zchuz/TimeBench/e7fd6722fd0b3814dc595912749223d45e42fab9/TimeBench-full-19000.zip",
    commit="e7fd6722fd0b3814dc595912749223d45e42fab9",
    sha256="cce62c1fb7d1a41eb46e434c583a5e3640516ab62e6f7625581a0d7026f83ca1",
    bytes=888_601,
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


@dataclass(frozen=True)
class _Row:
    """One question; `context` is None where nothing short enough holds the answer."""

    line: int
    index: str
    question: str
    answers: tuple[str, ...]
    answer_found: bool
    context: str | None

    @property
    def page(self) -> str:
        return self.index.partition("#")[0]


def read(job: Job) -> dict[Split, SplitRows]:
    """Build train and test (published: 630 test questions)."""
    options = job.options
    assert isinstance(options, TimeQAOptions)
    test_raw = job.input("test", "test")
    is_excerpt = job.file("test") is TIMEBENCH
    limit = None if is_excerpt else options.test_max_words
    parser = _parse_timebench if is_excerpt else _parse_whole_page(limit)
    test_rows = test_raw.parse(test_raw.json_lines(), parser)
    result: dict[Split, SplitRows] = {"test": SplitRows([], rows_read=len(test_rows))}
    _finish(test_raw, result["test"], test_rows, f"page of at most {limit} words" if limit else "")
    if not job.wants("train"):
        return result

    train_raw = job.input("train", "train")
    parser = _parse_whole_page(options.max_words) if options.context == "page" else _parse_excerpt(options.max_words)
    train_rows = train_raw.parse(train_raw.json_lines(), parser)
    train = result["train"] = SplitRows([], rows_read=len(train_rows))
    clean = train.filters.record(
        "pages of the test",
        "the question is about a page that the test file has too",
        train_rows,
        not_in_test(train_rows, test_rows, lambda row: row.page),
    )
    what = "page" if options.context == "page" else "excerpt"
    _finish(train_raw, train, clean, f"{what} of at most {options.max_words} words" if options.max_words else "")
    return result


def _finish(raw: RawInput, result: SplitRows, rows: list[_Row], limit: str) -> None:
    log = result.filters
    answerable = log.record(
        "answerable",
        "the publishers give the empty text as the answer of questions that the page cannot answer",
        rows,
        [row for row in rows if row.answers],
    )
    kept = log.record(
        "answer in the context",
        "PIPER leaves out samples whose ground truth is absent from the context; letter case is ignored",
        answerable,
        [row for row in answerable if row.answer_found],
    )
    if limit:
        kept = log.record(
            limit,
            "PIPER leaves out excessively long contexts; its limit for TimeQA is not published",
            kept,
            [row for row in kept if row.context is not None],
        )
    result.samples = raw.samples(kept, lambda row: _sample(raw, row))


# Texts that will be left out are dropped while reading: the pages of the training file fill hundreds of megabytes.
_Parser = Callable[[int, dict[str, Any]], _Row]


def _parse_timebench(line: int, row: dict[str, Any]) -> _Row:
    context = text_field(row, "context")
    return _row(line, row, _answers(row, "answer"), context, context)


def _parse_whole_page(limit: int | None) -> _Parser:
    def parse(line: int, row: dict[str, Any]) -> _Row:
        page = text_field(row, "context")
        fits = limit is None or word_count(page) <= limit
        return _row(line, row, _answers(row, "targets"), page, page if fits else None)

    return parse


def _parse_excerpt(limit: int | None) -> _Parser:
    def parse(line: int, row: dict[str, Any]) -> _Row:
        text_field(row, "context")
        page: str = row["context"]  # as it is: the offsets count its blanks
        answers = _answers(row, "targets")
        chosen = None
        if answers:
            place, chunks = _place(row, page), chunk_spans(page, _chunks(row))
            chosen = clean(excerpt(page, chunks, place, limit) or "") or None
        shown = [answer for answer in answers if chosen is not None and contains_any(chosen, [answer])]
        return _row(line, row, shown or answers, chosen or page, chosen)

    return parse


def _row(line: int, row: dict[str, Any], answers: list[str], searched: str, context: str | None) -> _Row:
    index = text_field(row, "idx")
    return _Row(line, index, text_field(row, "question"), tuple(answers), contains_any(searched, answers), context)


def _answers(row: dict[str, Any], name: str) -> list[str]:
    answers = text_list(name, row.get(name, MISSING))
    if not answers:
        raise BadRowError.at(name, answers, "at least one text ('' where the page has no answer)")
    return list(dict.fromkeys(filter(None, answers)))


def _place(row: dict[str, Any], page: str) -> tuple[int, int]:
    """(start, end) in the page of the first target that is not empty; the places of all are checked."""
    targets, starts, ends = (row.get(name, MISSING) for name in ("targets", "from", "end"))
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


def _chunks(row: dict[str, Any]) -> list[str]:
    chunks = row.get("paragraphs", MISSING)
    if not isinstance(chunks, list) or not chunks:
        raise BadRowError.at("paragraphs", chunks, "the page's paragraphs, a list of objects with a text")
    for number, chunk in enumerate(chunks):
        if not isinstance(chunk, dict) or not isinstance(chunk.get("text"), str):
            raise BadRowError.at(f"paragraphs.{number}", chunk, "an object with a text")
    return [chunk["text"].strip() for chunk in chunks]


def _sample(raw: RawInput, row: _Row) -> EventSample:
    assert row.context is not None
    return EventSample(
        id=f"timeqa-{raw.split}-{row.line}",
        dataset="timeqa",
        split=raw.split,
        relation="temporal",
        format="qa",
        context=row.context,
        question=row.question,
        answers=list(row.answers),
        meta={"source": raw.name, "line": row.line, "idx": row.index, "licence": _LICENCE},
    )


TIMEQA = Source(
    name="timeqa",
    format="qa",
    licence=_LICENCE,
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
