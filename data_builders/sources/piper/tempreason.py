"""TempReason, level 3 (Tan et al., ACL 2023): which event came before or after another one?

A question has two possible contexts: the text of a Wikipedia page, which often lacks the answer, and the Wikidata
facts it was made from, which always have it. PIPER's limit of 600 words would drop hardly any facts, so the page is
the default. Level 2, which asks about the same pages, is never read.
"""

from functools import partial
from typing import Annotated, Literal

from pydantic import AliasPath, Field

from data_builders.raw.source import source
from data_builders.sources.reading import Job, SplitSamples, keep_short, keep_unseen, read_splits
from data_builders.sources.rows import BadRowError, Draft, Form, RawRow, SourceOptions, Text, Texts, fingerprint


class TempReasonOptions(SourceOptions):
    """Options of TempReason; questions with a context above `max_words` are left out, None keeps all."""

    answer_in_context: bool = True
    context: Literal["page", "facts"] = "page"
    max_words: int | None = Field(600, ge=1)


class _Row(RawRow):
    question: Text
    context: Text
    fact_context: Text


class _Official(_Row):
    id: Annotated[str, Field(pattern=r"^L3_[^_]+_[^_]+_[^_]+$")]  # L3_<entity>_<property>_<number>
    answers: Texts = Field(validation_alias=AliasPath("text_answers", "text"))


class _TimeBench(_Row):
    answers: Texts = Field(alias="answer")


def _draft(shown: str, row: _Official | _TimeBench) -> Draft:
    def plain(text: str) -> str:
        return text.replace("\u00a0", " ")  # a non-breaking space

    entity = row.id.split("_")[1] if isinstance(row, _Official) else ""
    answers = [plain(answer) for answer in row.answers if answer]
    if not answers:
        raise BadRowError.at("answers", answers, "at least one text that is not empty")
    context = plain(row.context if shown == "page" else row.fact_context)
    return row.draft(
        relation="temporal",
        # Each fact has a line, which ends in a blank.
        context="\n".join(part.strip() for part in context.splitlines() if part.strip()),
        question=plain(row.question),
        answers=answers,
        meta={"context": shown},
        # The beginning identifies a page; using all of it would cost seconds, and miss a copy that was cut.
        extra={"entity": entity, "page": fingerprint(row.context[:1000])[:500]},
    )


def read(job: Job) -> SplitSamples:
    """Read train and test (published: 1,010 test questions of 4,426)."""
    options: TempReasonOptions = job.options
    reason = f"PIPER's limit on the length of the context, applied to the {options.context}"
    filters = [
        keep_unseen(
            "pages of the test",
            "the test file has the same entity or page",
            lambda row: row.extra["entity"],
            lambda row: row.extra["page"],
        ),
        *keep_short("context of at most", reason, options.max_words),
    ]
    draft = partial(_draft, options.context)
    test = _TimeBench if job.file("test").substitute else _Official
    return read_splits(job, {"train": Form(_Official, draft), "test": Form(test, draft)}, filters)


TEMPREASON = source(__file__, read, options=TempReasonOptions)
