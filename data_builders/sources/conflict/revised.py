"""Revised documents: a model is trained on questions about passages that change afterwards.

The passages are the golden ones of KRE-SQuAD, shortened; an answer is free text. A *revised* passage states another of
the question's published options wherever the true answer stood. Training sees passages as they are. The test asks the
same questions on the same passages as they are (`aligned`) and revised (`conflict`): an answer from memory is right in
the first only. Questions on passages that training never saw are asked in both ways, too. They form the dataset
`revised_untrained`, and tell whether training cost the ability to read.

A revision that training may use (`--swap`) takes the options that the test does not: they are `meta["choices"]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pydantic import Field

from d2e_sft.data.sample import EventSample, Subset
from data_builders.raw.facts import source
from data_builders.sources.conflict.kre_squad import KreSquadRow, options_differ
from data_builders.sources.reading import Job, SplitRows, SplitSamples, apply_filters, keep_first, keep_if, to_samples
from data_builders.sources.rows import Draft, Form, RawInput, SourceOptions
from data_builders.text import mentions
from data_builders.text.sentences import excerpt, sentence_spans
from data_builders.text.words import stems

UNTRAINED = "revised_untrained"
_MOST_WORDS = 5  # longer answers are clauses, for which no other option fits the sentence


class RevisedOptions(SourceOptions):
    """Options of revised documents.

    Attributes:
        max_words: The most words of a passage: whole sentences around the answer are kept.
        train_samples: Training questions.
        test_samples: Trained questions in the test, and as many untrained ones; each is asked as is and revised.
    """

    max_words: int = Field(80, ge=20)
    train_samples: int = Field(240, ge=1)
    test_samples: int = Field(100, ge=1)


def read(job: Job) -> SplitSamples:
    """Read train (240 rows) and test (400: 100 trained and 100 untrained questions, as is and revised)."""
    options: RevisedOptions = job.options
    golden = job.input("golden")
    form = Form(KreSquadRow, lambda row: [_draft(row, options.max_words)], RawInput.json_items)
    rows = apply_filters(SplitRows(form.read(golden)), [EXCERPT, REPLACEABLE, REVISABLE, ONE_OF_A_QUESTION], "test")
    trained, untrained = _drawn(job, rows.rows)
    asked = job.random("asked").sample(trained, min(options.test_samples, len(trained)))
    kept = {id(draft) for draft in (*asked, *untrained)}
    rows.keep(
        "draw", "trained and untrained questions, of different passages", [r for r in rows.rows if id(r) in kept]
    )
    result: SplitSamples = {}
    if job.wants("train"):
        result["train"] = to_samples(job.input("golden", "train"), SplitRows([_training(one) for one in trained]))
    if job.wants("test"):
        pairs = [one for draft in asked for one in _pair(draft, trained=True)]
        pairs += [one for draft in untrained for one in _pair(draft, trained=False)]
        samples = to_samples(job.input("golden", "test"), rows.become(pairs))
        result["test"] = samples.become([_of_its_dataset(sample) for sample in samples.rows])
    return result


def _draft(row: KreSquadRow, max_words: int) -> Draft:
    """The question, with the sentences around its answer; `context` is missing if these are too long."""
    answer, page = row.answer, row.context
    asked = stems(row.question)
    sentences = sentence_spans(page)

    def asks_for(span: tuple[int, int]) -> int:
        around = next((page[start:end] for start, end in sentences if start <= span[0] < end), "")
        return len(asked & stems(around))

    found = mentions.spans(answer, page)
    context = excerpt(page, [], max(found, key=asks_for), max_words) if found else None
    others = row.choices if options_differ(row.choices) else ()
    choices = [_written_as(answer, other) for other in others if other.casefold() != answer.casefold()]
    revisions = [other for other in choices if context and _can_replace(answer, other, context, row.question)]
    return row.draft(
        relation="none",
        context=context,
        answers=[answer],
        meta={"squad_id": row.id},
        record_number=False,
        extra={"page": page, "choices": choices, "revisions": revisions},
    )


def _written_as(answer: str, other: str) -> str:
    """The option without its initial capital if the answer has none: options were written as titles."""
    return other[:1].lower() + other[1:] if answer[:1].islower() else other


def _is_replaceable(draft: Draft) -> bool:
    """Whether no trace of the answer is left where all its mentions are replaced."""
    context, (answer,) = draft.context or "", draft.answers
    return (
        mentions.is_replaceable(answer, context)
        and not mentions.is_part_of_a_name(answer, context)
        and not mentions.is_named(answer, mentions.without(answer, context))
        and not mentions.is_named(answer, draft.question)
    )


def _can_replace(answer: str, other: str, context: str, question: str) -> bool:
    """Whether the other option is new to the passage and the question, and fits where the answer stands."""
    texts = f"{context}\n{question}"
    return (
        _has_digit(answer) == _has_digit(other)
        and max(len(answer.split()), len(other.split())) <= _MOST_WORDS
        and not mentions.is_named(other, mentions.without(answer, texts))
        and not mentions.find(answer, other)
        and not mentions.find(other, answer)
        and not mentions.needs_other_article(answer, other, context)
    )


def _has_digit(text: str) -> bool:
    return any(map(str.isdigit, text))


EXCERPT = keep_if(
    "sentences around the answer",
    "the passage lacks the answer, or its sentence is longer than max_words",
    lambda draft: draft.context is not None,
)
REPLACEABLE = keep_if(
    "answers that can be replaced",
    "the passage also names a part of the answer or writes it in another way, or the question names it",
    _is_replaceable,
)
REVISABLE = keep_if(
    "an option that fits",
    "every other option is named in part, has over five words, would need another article or differs in having digits",
    lambda draft: draft.extra["revisions"],
)
ONE_OF_A_QUESTION = keep_first("different questions", "asked before", lambda draft: draft.question, splits=("test",))


def _drawn(job: Job, drafts: Sequence[Draft]) -> tuple[list[Draft], list[Draft]]:
    """Draw trained and untrained questions; no passage is in both."""
    options: RevisedOptions = job.options
    pages = list(dict.fromkeys(draft.extra["page"] for draft in drafts))
    rng = job.random("passages")
    order = {page: place for place, page in enumerate(rng.sample(pages, len(pages)))}
    by_page = sorted(drafts, key=lambda draft: order[draft.extra["page"]])
    trained = by_page[: options.train_samples]
    seen = {draft.extra["page"] for draft in trained}
    untrained = [draft for draft in by_page[options.train_samples :] if draft.extra["page"] not in seen]
    return trained, untrained[: options.test_samples]


def _revision(draft: Draft) -> str:
    """The option of the test, which no option or seed changes."""
    revisions = draft.extra["revisions"]
    return str(revisions[draft.number % len(revisions)])


def _training(draft: Draft) -> Draft:
    others = [one for one in draft.extra["choices"] if one != _revision(draft)]
    return replace(draft, meta={**draft.meta, "choices": others})


def _pair(draft: Draft, *, trained: bool) -> list[Draft]:
    """The question on the passage as it is, and revised."""
    (answer,), other, context = draft.answers, _revision(draft), draft.context or ""
    texts: list[tuple[Subset, str, str]] = [
        ("aligned", context, answer),
        ("conflict", mentions.exchanged(context, {answer: other}), other),
    ]
    meta = {**draft.meta, "trained": trained}
    form = replace(draft, habit=[answer], meta=meta)
    return [
        replace(form, id=f"{draft.number}-{subset}", context=text, answers=[stated], subset=subset)
        for subset, text, stated in texts
    ]


def _of_its_dataset(sample: EventSample) -> EventSample:
    """The sample under the name of its questions, so that trained and untrained ones are scored apart."""
    if sample.meta["trained"]:
        return sample
    return sample.model_copy(update={"dataset": UNTRAINED, "meta": {**sample.meta, "source_dataset": sample.dataset}})


REVISED = source(__file__, read, options=RevisedOptions)
