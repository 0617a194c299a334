"""TimeQA, hard split (Chen et al., NeurIPS 2021): who held which role at a time that the page implies?

The context is a whole Wikipedia page, mostly thousands of words. PIPER reports 630 test samples without a rule; a
limit of about 1,000 words would give a similar number. Few pages are short enough to train on, so by default a
training row keeps the sentence with its answer and as many neighbouring sentences as fit. If the answer is in a list
that is too long for that, the excerpt is made of the published `paragraphs`, chunks of about 100 words.
"""

from functools import partial
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, AliasChoices, Field, NonNegativeInt, model_validator

from data_builders.raw.row import Draft, clean
from data_builders.raw.source import source
from data_builders.sources.reading import Job, SplitSamples, keep_if, keep_short, keep_unseen, read_splits
from data_builders.sources.rows import Cleaned, Form, RawObject, RawRow, SourceOptions, Text, Texts, contains_any
from data_builders.text.sentences import chunk_spans, excerpt


class TimeQAOptions(SourceOptions):
    """Options of TimeQA; `context` and `max_words` are those of training.

    Test questions on a page of more than `test_max_words` are left out. None sets no limit.
    """

    answer_in_context: bool = True
    context: Literal["excerpt", "page"] = "excerpt"
    max_words: int | None = Field(600, ge=1)
    test_max_words: int | None = Field(1000, ge=1)


class _Row(RawRow):
    """A question on a page, also in TimeBench's form; an answer of "" means that the page does not answer it."""

    idx: Text
    question: Text
    context: Text
    targets: Texts = Field(validation_alias=AliasChoices("targets", "answer"))


class _Paragraph(RawObject):
    text: Cleaned


class _Annotated(_Row):
    """A question with the places of its answers, which count the blanks of the page."""

    context: Annotated[str, AfterValidator(lambda page: page if clean(page) else "")]
    starts: list[NonNegativeInt] = Field(alias="from")
    ends: list[NonNegativeInt] = Field(alias="end")
    paragraphs: list[_Paragraph]

    @model_validator(mode="after")
    def _answers_are_at_their_places(self) -> Self:
        if not len(self.targets) == len(self.starts) == len(self.ends):
            raise ValueError(f"from, end: expected as many positions as targets ({len(self.targets)})")
        for target, start, end in zip(self.targets, self.starts, self.ends, strict=True):
            if any(self.targets) and clean(text := self.context[start:end]).casefold() != target.casefold():
                raise ValueError(f"from, end: got the place of {text[:100]!r}; expected that of {target[:100]!r}")
        return self


# Long contexts are dropped while reading: the pages of the training file fill hundreds of megabytes.
def _with_page(limit: int | None, row: _Row) -> Draft:
    fits = limit is None or len(row.context.split()) <= limit
    return _draft(row, row.targets, row.context if fits else None)


def _with_excerpt(limit: int | None, row: _Annotated) -> Draft:
    answers, chosen = [answer for answer in row.targets if answer], None
    if answers:
        first = row.targets.index(answers[0])
        chunks = chunk_spans(row.context, [paragraph.text for paragraph in row.paragraphs])
        chosen = clean(excerpt(row.context, chunks, (row.starts[first], row.ends[first]), limit) or "") or None
    shown = [answer for answer in answers if chosen is not None and contains_any(chosen, [answer])]
    return _draft(row, shown or answers, chosen)


def _draft(row: _Row, answers: list[str], context: str | None) -> Draft:
    """A question; `context` is missing if nothing short enough has the answer."""
    answers = list(dict.fromkeys(filter(None, answers)))
    meta, extra = {"idx": row.idx}, {"page": row.idx.partition("#")[0]}
    return row.draft(relation="temporal", context=context, answers=answers, meta=meta, extra=extra)


FILTERS = [
    keep_unseen("pages of the test", "the test file has the same page", lambda row: row.extra["page"]),
    keep_if(
        "answerable",
        "the publishers give an empty answer to questions that the page cannot answer",
        lambda row: row.answers,
    ),
]


def read(job: Job) -> SplitSamples:
    """Read train and test (published: 630 test questions)."""
    options: TimeQAOptions = job.options
    excerpts = bool(job.file("test").substitute)
    test_limit = None if excerpts else options.test_max_words
    train: Form[Any] = Form(_Annotated, partial(_with_excerpt, options.max_words))
    if options.context == "page":
        train = Form(_Row, partial(_with_page, options.max_words))
    reason = "PIPER leaves out very long contexts; its limit for TimeQA is not published"
    filters = [
        *FILTERS,
        *keep_short("page of at most", reason, test_limit, splits=("test",)),
        *keep_short(f"{options.context} of at most", reason, options.max_words, splits=("train",)),
    ]
    test = Form(_Row, partial(_with_page, test_limit))
    return read_splits(job, {"train": train, "test": test}, filters)


TIMEQA = source(__file__, read, options=TimeQAOptions)
