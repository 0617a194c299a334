"""TimeQA, hard split (Chen et al., NeurIPS 2021): who held which role at a time that the page implies?

The context is a whole Wikipedia page, thousands of words in most rows. PIPER reports 630 test samples and no rule:
a limit of about 1,000 words on pages that hold the answer would give a number like that (an estimate). For training,
whole pages within the limit are few, so by default a row keeps the paragraph that holds its answer and as many of
the paragraphs around it as fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from d2e_sft.sample import EventSample, Split
from data_builders.raw import BadRowError, RawInput, text_field, text_list
from data_builders.sources.source import Input, Job, RawFile, Source, SourceOptions, SplitRows
from data_builders.sources.texts import contains_any, word_count

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
        context: what a training sample shows: the paragraphs around the answer or the whole page.
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
    test_pages = {row.page for row in test_rows}
    clean = train.filters.record(
        "pages of the test",
        "the question is about a page that the test file has too",
        train_rows,
        [row for row in train_rows if row.page not in test_pages],
    )
    what = "page" if options.context == "page" else "paragraph of the answer"
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
    result.samples = raw.samples(kept, lambda row: _sample(raw, row), lambda row: row.line)


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
        spans = _spans(row, page) if answers else []
        chosen = excerpt(page, paragraph_spans(page, _paragraphs(row)), spans[0], limit) if spans else None
        shown = [answer for answer in answers if chosen is not None and contains_any(chosen, [answer])]
        return _row(line, row, shown or answers, chosen or page, chosen)

    return parse


def _row(line: int, row: dict[str, Any], answers: list[str], searched: str, context: str | None) -> _Row:
    index = text_field(row, "idx")
    return _Row(line, index, text_field(row, "question"), tuple(answers), contains_any(searched, answers), context)


def _answers(row: dict[str, Any], name: str) -> list[str]:
    answers = text_list(name, row.get(name))
    if not answers:
        raise BadRowError.at(name, answers, "at least one text ('' where the page has no answer)")
    return list(dict.fromkeys(answer for answer in answers if answer))


def _spans(row: dict[str, Any], page: str) -> list[tuple[int, int]]:
    starts, ends = row.get("from"), row.get("end")
    if not isinstance(starts, list) or not isinstance(ends, list) or len(starts) != len(ends) or not starts:
        raise BadRowError.at("from", starts, "a list of positions in the context, as long as 'end'")
    for start, end in zip(starts, ends, strict=True):
        if type(start) is not int or type(end) is not int or not 0 <= start < end <= len(page):
            raise BadRowError.at("from", (start, end), f"positions in the context of {len(page):,} characters")
    return list(zip(starts, ends, strict=True))


def _paragraphs(row: dict[str, Any]) -> list[str]:
    paragraphs = row.get("paragraphs")
    if not isinstance(paragraphs, list) or not all(
        isinstance(item, dict) and isinstance(item.get("text"), str) for item in paragraphs
    ):
        raise BadRowError("paragraphs: missing or not a list of objects with a text; expected the page's paragraphs")
    return [item["text"].strip() for item in paragraphs]


def paragraph_spans(page: str, paragraphs: list[str]) -> list[tuple[int, int]]:
    """(start, end) of each paragraph in the page; what stands between two of them is one of its own if it is long.

    Headings stand between paragraphs; they belong to what follows them.
    """
    spans: list[tuple[int, int]] = []
    last = 0
    for text in paragraphs:
        at = page.find(text, last) if text else -1
        if at < 0:
            continue
        if page[last:at].strip():
            if word_count(page[last:at]) > _LONGEST_HEADING:
                spans.append((last, at))
            else:
                at = last
        last = page.index(text, last) + len(text)
        spans.append((at, last))
    if page[last:].strip():
        spans.append((last, len(page)))
    return spans


_LONGEST_HEADING = 20


def excerpt(page: str, spans: list[tuple[int, int]], answer: tuple[int, int], limit: int | None) -> str | None:
    """The paragraphs that hold the answer and as many around them, the next one first, as fit in `limit` words.

    None where the answer's own paragraphs are too long.
    """
    if limit is None:
        return page.strip()
    holding = [number for number, (start, end) in enumerate(spans) if start < answer[1] and answer[0] < end]
    if not holding:
        return None
    first, last = holding[0], holding[-1]

    def words(first: int, last: int) -> int:
        return word_count(page[spans[first][0] : spans[last][1]])

    if words(first, last) > limit:
        return None
    grown = True
    while grown:
        grown = False
        if last + 1 < len(spans) and words(first, last + 1) <= limit:
            last, grown = last + 1, True
        if first > 0 and words(first - 1, last) <= limit:
            first, grown = first - 1, True
    return page[spans[first][0] : spans[last][1]].strip()


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
        "train": "context=excerpt shows whole paragraphs around the answer, so a model never sees a page in which "
        "the answer is far away",
    },
)
