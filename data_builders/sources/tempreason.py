"""TempReason, level 3 (Tan et al., ACL 2023): which event came before or after another one?

A question has two possible contexts: the text of a Wikipedia page, which often does not hold the answer, and the
Wikidata facts it was made from, which always do. PIPER keeps the questions "whose context length does not exceed
600 words" and does not say which context. The facts are nearly all shorter than that, so a limit would hardly
drop any; the page is therefore the default. Questions of level 2 are about the same pages and are never read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from d2e_sft.data.sample import Split
from data_builders.raw.reader import Draft, RawInput
from data_builders.raw.row import BadRowError, Row
from data_builders.raw.source import Input, Job, Release, Samples, Source, SourceOptions, SplitRows
from data_builders.sources.rows import TIMEBENCH_FILES, not_in_test
from data_builders.text.texts import fingerprint, plain_spaces, word_count

_REVISION = "1646dea364ac667dd6098646da7d6638de00cc71"
_FILES = Release(f"https://huggingface.co/datasets/tonytan48/TempReason/resolve/{_REVISION}", _REVISION)

# No checksum: the ones in circulation are second-hand, and a wrong one would refuse a good download.
TRAIN = _FILES.file("train_l3.json")
TEST = _FILES.file("test_l3.json")
TIMEBENCH = TIMEBENCH_FILES.file(
    "event-event_839.jsonl",
    "d61cbb5ad156f79807eb35d66c7ca1ed696b664eba68b0e0b9d4971264413e1a",
    2_336_517,
    path="TimeBench-full-19000.zip",
    member="TimeBench-full-19000/event-time/tempreason/event-event_839.jsonl",
    substitute="TimeBench's 839 of the 4,426 test questions: all those of 220 pages, of 226 to 447 words each",
)


class TempReasonOptions(SourceOptions):
    """Options of TempReason.

    Attributes:
        context: what a sample shows: the text of the page or the facts of Wikidata.
        max_words: questions with a longer context are left out; None keeps all.
    """

    context: Literal["page", "facts"] = "page"
    max_words: int | None = Field(600, ge=1)


@dataclass(frozen=True, kw_only=True)
class _Row(Draft):
    entity: str
    page: str


def read(job: Job) -> dict[Split, Samples]:
    """Build train and test (published: 1,010 test questions of 4,426)."""
    options = job.options
    assert isinstance(options, TempReasonOptions)
    test_raw, official = job.input("test"), job.file("test") is not TIMEBENCH
    test = SplitRows(test_raw.parse(test_raw.json_lines(), lambda row: _parse(row, options, official=official)))
    test_rows = test.rows
    result: dict[Split, Samples] = {"test": _finish(test_raw, test, options)}
    if job.wants("train"):
        raw = job.input("train")
        train = SplitRows(raw.parse(raw.json_lines(), lambda row: _parse(row, options)))
        train.keep(
            "pages of the test",
            "the question is about an entity, or comes with a page, that the test file has too",
            not_in_test(train.rows, test_rows, lambda row: row.entity, lambda row: row.page),
        )
        result["train"] = _finish(raw, train, options)
    return result


def _finish(raw: RawInput, rows: SplitRows[_Row], options: TempReasonOptions) -> Samples:
    limit = options.max_words
    if limit is not None:
        rows.keep(
            f"context of at most {limit} words",
            f"PIPER's limit on the length of the context, which is taken to be the {options.context}",
            [row for row in rows.rows if word_count(row.context or "") <= limit],
        )
    return rows.become(raw.parse(rows.rows, raw.sample))


def _parse(row: Row, options: TempReasonOptions, *, official: bool = True) -> _Row:
    answers, entity = _official_answers(row) if official else (row.texts("answer"), "")
    if not any(answers):
        raise BadRowError.at("answer", answers, "at least one text that is not empty")
    context = plain_spaces(row.text("context" if options.context == "page" else "fact_context"))
    # The facts stand one on a line, with a blank before each line end.
    context = "\n".join(part.strip() for part in context.splitlines() if part.strip())
    # Its start tells a page from others; all of it would cost seconds, and miss a copy that was cut.
    page = fingerprint(row.text("context")[:1000])[:500]
    return _Row(
        number=row.number,
        relation="temporal",
        context=context,
        question=plain_spaces(row.text("question")),
        answers=[plain_spaces(answer) for answer in answers if answer],
        meta={"context": options.context},
        entity=entity,
        page=page,
    )


def _official_answers(row: Row) -> tuple[list[str], str]:
    """The answers, and the entity that the question is about."""
    answers = row.object("text_answers", "an object with a list 'text'")
    parts = row.text("id").split("_")
    if len(parts) != 4 or parts[0] != "L3":
        raise row.error("id", "L3_<entity>_<property>_<number>")
    return answers.texts("text"), parts[1]


TEMPREASON = Source(
    name="tempreason",
    format="qa",
    licence="CC-BY-SA-3.0 (its card on the Hub)",
    homepage="https://huggingface.co/datasets/tonytan48/TempReason",
    inputs=(Input("train", (TRAIN,), ("train",)), Input("test", (TEST, TIMEBENCH), ("train", "test"))),
    read=read,
    options=TempReasonOptions,
    notes={
        "count": "1,010 is the published number of test questions; which context PIPER limits to 600 words is not "
        "published, and a page text often lacks the answer (233 of TimeBench's 839 have it, all facts have it)",
        "context": "page texts are as published: the title runs into the first word, paragraphs into each other",
    },
)
