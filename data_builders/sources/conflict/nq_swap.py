"""NQ-Swap: questions of Natural Questions on passages in which the answer was swapped for another entity.

The framework is by Longpre et al. (EMNLP 2021), the release by P. Minervini. The published passage with the published
answer is an `aligned` row, a passage with a swapped entity a `conflict` row; the habit is the published answer in
both. Swaps only keep the tagged type of the entity; many of them are absurd.
"""

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from data_builders.raw.source import Job, SplitRows, SplitSamples, source
from data_builders.sources.reading import apply_filters, keep_first, keep_short, keep_unseen, move_share, to_samples
from data_builders.sources.rows import Draft, Form, RawRow, SourceOptions, Text, columns, passages


class NQSwapOptions(SourceOptions):
    """Options of NQ-Swap. Passages have up to 851 words; `max_words` None sets no limit.

    `train_share` is the share of the questions whose aligned rows are the training split.
    """

    max_words: int | None = Field(None, ge=1)
    train_share: float = Field(0, ge=0, lt=1)


_Answers = Annotated[list[Text], Field(min_length=1)]


class _Row(RawRow):
    question: Text
    org_context: Text
    org_answer: _Answers
    sub_context: Text
    sub_answer: _Answers


def _drafts(row: _Row) -> Iterator[Draft]:
    return passages(row, str(row.number), (row.org_context, row.org_answer), (row.sub_context, row.sub_answer))


REPEATS = keep_first(
    "repeated rows",
    "the rows of one question share its aligned row, and some swaps are published twice",
    lambda row: (row.subset, row.question, row.context),
    splits=("test",),
)
UNSEEN = keep_unseen("contexts of the test", "a test question has the same passage", lambda row: row.context)


def read(job: Job) -> SplitSamples:
    """Read the test (2,146 aligned and 4,730 conflict rows), and train with `train_share`."""
    options: NQSwapOptions = job.options
    raw = job.input("test")
    filters = [REPEATS, *keep_short("passages up to", "longer ones are left out (max_words)", options.max_words)]
    drafts = Form(_Row, _drafts, lambda raw: raw.parquet_rows(columns(_Row))).read(raw)
    rows = apply_filters(SplitRows(drafts), filters, "test")
    drawn = move_share(rows, lambda row: row.question, options.train_share, job.random("train"), "questions")
    result: SplitSamples = {}
    if job.wants("train") and drawn:
        train = SplitRows([row for row in drawn if row.subset == "aligned"])
        result["train"] = to_samples(job.input("test", "train"), apply_filters(train, [UNSEEN], "train", rows.rows))
    if job.wants("test"):
        result["test"] = to_samples(raw, rows)
    return result


NQ_SWAP = source(__file__, read, options=NQSwapOptions)
