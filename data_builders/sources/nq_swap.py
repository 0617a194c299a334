"""NQ-Swap: questions of Natural Questions on passages in which the answer was swapped for another entity.

The framework is that of Longpre et al. (EMNLP 2021), the release that of P. Minervini. The published passage with the
published answer is an `aligned` row, a passage with a swapped entity a `conflict` row; what memory would say is the
published answer in both. Swaps keep the tagged type of the entity only, so many are absurd.

There is no training split. `train_share` makes one of the aligned rows of a share of the questions; the test then has
the other questions, and no passage of the training rows.
"""

from __future__ import annotations

from pydantic import Field

from d2e_sft.data.sample import Split
from data_builders.raw.reader import Draft, RawInput
from data_builders.raw.row import Row
from data_builders.raw.source import Input, Job, RawFile, Samples, Source, SourceOptions, SplitRows
from data_builders.sources.rows import draw_share, first_of_each, not_in_test
from data_builders.text.texts import word_count

_COMMIT = "d1fa5a916a566025e9790214fb6cdcc545347f26"
SWAPPED = RawFile(
    "dev-00000-of-00001.parquet",
    f"https://raw.githubusercontent.com/aryopg/DeCoRe/{_COMMIT}/data/NQ-Swap/data/dev-00000-of-00001.parquet",
    _COMMIT,
    "7114c7d1c8a7343f7754b12487272b3c9cf5a5ba0f5fce298c0b8d9a6130fe4c",
    2_754_938,
)
_COLUMNS = ("question", "org_context", "org_answer", "sub_context", "sub_answer")


class NQSwapOptions(SourceOptions):
    """Options of NQ-Swap.

    Attributes:
        max_words: the most words of a passage; None is no bound. Passages have up to 851.
        train_share: share of the questions whose aligned rows are the training split.
    """

    max_words: int | None = Field(None, ge=1)
    train_share: float = Field(0, ge=0, lt=1)


def read(job: Job) -> dict[Split, Samples]:
    """Build test (2,146 aligned and 4,730 conflict rows); train with `train_share`."""
    options = job.options
    assert isinstance(options, NQSwapOptions)
    raw = job.input("test")
    read_rows = raw.parse(raw.parquet_rows(_COLUMNS), _parse)
    rows = SplitRows([draft for pair in read_rows for draft in pair])
    rows.keep(
        "repeated rows",
        "the rows of one question share its aligned row, and some swaps are published twice",
        first_of_each(rows.rows, lambda row: (row.subset, row.question, row.context)),
    )
    if options.max_words is not None:
        most = options.max_words
        rows.keep(
            f"passages up to {most:,} words",
            "longer ones are left out (max_words)",
            [row for row in rows.rows if word_count(row.context or "") <= most],
        )
    drawn = draw_share((row.question for row in rows.rows), options.train_share, job.random("train"))
    result: dict[Split, Samples] = {}
    if job.wants("train") and drawn:
        result["train"] = _train(job, rows, drawn)
    if job.wants("test"):
        if drawn:
            rows.keep(
                "questions of the training rows",
                "their aligned rows are trained on (train_share)",
                [row for row in rows.rows if row.question not in drawn],
            )
        result["test"] = rows.become(raw.parse(rows.rows, raw.sample))
    return result


def _train(job: Job, rows: SplitRows[Draft], drawn: set[str]) -> Samples:
    raw: RawInput = job.input("test", "train")
    train = SplitRows([row for row in rows.rows if row.question in drawn and row.subset == "aligned"])
    test = [row for row in rows.rows if row.question not in drawn]
    train.keep(
        "contexts of the test",
        "the passage is also that of a test question",
        not_in_test(train.rows, test, lambda row: row.context),
    )
    return train.become(raw.parse(train.rows, raw.sample))


def _parse(row: Row) -> tuple[Draft, Draft]:
    """The aligned and the conflict row."""
    habit = _answers(row, "org_answer")
    return (
        _draft(row, row.text("org_context"), habit, habit, conflict=False),
        _draft(row, row.text("sub_context"), _answers(row, "sub_answer"), habit, conflict=True),
    )


def _answers(row: Row, name: str) -> list[str]:
    answers = list(dict.fromkeys(filter(None, row.texts(name))))
    if not answers:
        raise row.error(name, "at least one answer")
    return answers


def _draft(row: Row, context: str, answers: list[str], habit: list[str], *, conflict: bool) -> Draft:
    return Draft(
        number=row.number,
        id=f"{row.number}-{'conflict' if conflict else 'aligned'}",
        relation="factual",
        context=context,
        question=row.text("question"),
        answers=answers,
        subset="conflict" if conflict else "aligned",
        habit=habit,
    )


NQ_SWAP = Source(
    name="nq_swap",
    format="qa",
    licence="MIT (its card on the Hub; the text of Natural Questions is CC BY-SA 3.0)",
    homepage="https://huggingface.co/datasets/pminervini/NQ-Swap",
    folder="conflict/nq-swap",
    inputs=(Input("test", (SWAPPED,), ("train", "test")),),
    read=read,
    options=NQSwapOptions,
    redistribution="the text is Wikipedia's, under CC BY-SA 3.0, and the card's licence is another",
    notes={
        "count": "a published row holds both passages: the swapped one gives a conflict row, the other, which rows of "
        "one question share, an aligned one; 16 repeats are left out",
        "habit": "the answers of Natural Questions, in both rows of a question",
        "text": "as published: HTML tags as words, blanks before punctuation, passages cut at 800 words",
        "train": "none is published; train_share draws questions, and the test then has the others",
    },
)
