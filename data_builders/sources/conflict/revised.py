"""Revised documents: a model is trained on questions about passages that change afterwards.

The passages are the golden ones of KRE-SQuAD, shortened; an answer is free text. A *revised* passage states another of
the question's published options wherever the true answer stood. Training sees passages as they are. The test asks the
same questions on the same passages as they are (`aligned`) and revised (`conflict`): an answer from memory is right in
the first only. Questions on passages that training never saw are asked in both ways, too. They form the dataset
`revised_untrained`, and tell whether training cost the ability to read.

A revision that training may use (`--swap`) takes the options that the test does not: they are `meta["choices"]`.
"""

from dataclasses import replace

from pydantic import Field

from d2e_sft.data.sample import EventSample
from data_builders.raw.source import source
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
        test_samples: Trained questions in the test, and as many untrained ones; each is asked as is and revised.
    """

    max_words: int = Field(80, ge=20)
    train_samples: int = Field(240, ge=1)
    test_samples: int = Field(100, ge=1)


FILTERS = (
    keep_if(
        "sentences around the answer",
        "the passage lacks the answer, or its sentence is longer than max_words",
        lambda draft: draft.context is not None,
    ),
    keep_if(
        "answers that can be replaced",
        "the passage also names a part of the answer or writes it in another way, or the question names it",
        lambda draft: _is_replaceable(draft.answers[0], draft.context, draft.question),
    ),
    keep_if(
        "an option that fits",
        "every other option is named in part, has over five words, would need another article or differs in having "
        "digits",
        lambda draft: draft.extra["revisions"],
    ),
    keep_first("different questions", "asked before", lambda draft: draft.question, splits=("test",)),
)


def read(job: Job) -> SplitSamples:
    """Read train (240 rows) and test (400: 100 trained and 100 untrained questions, as is and revised)."""
    options: RevisedOptions = job.options
    form = Form(KreSquadRow, lambda row: [_draft(row, options.max_words)], RawInput.json_items)
    rows = apply_filters(SplitRows(form.read(job.input("golden"))), FILTERS, "test")
    # No passage is in trained and untrained questions.
    pages = list(dict.fromkeys(draft.extra["page"] for draft in rows.rows))
    order = {page: place for place, page in enumerate(job.random("passages").sample(pages, len(pages)))}
    by_page = sorted(rows.rows, key=lambda draft: order[draft.extra["page"]])
    trained, remaining = by_page[: options.train_samples], by_page[options.train_samples :]
    seen = {draft.extra["page"] for draft in trained}
    untrained = [draft for draft in remaining if draft.extra["page"] not in seen][: options.test_samples]
    retested = job.random("asked").sample(trained, min(options.test_samples, len(trained)))
    kept = {id(draft) for draft in (*retested, *untrained)}
    drawn = [draft for draft in rows.rows if id(draft) in kept]
    rows.keep("draw", "trained and untrained questions, of different passages", drawn)
    result: SplitSamples = {}
    if job.wants("train"):
        choices = ([choice for choice in draft.extra["choices"] if choice != _revision(draft)] for draft in trained)
        train = [replace(row, meta={**row.meta, "choices": left}) for row, left in zip(trained, choices, strict=True)]
        result["train"] = to_samples(job.input("golden", "train"), SplitRows(train))
    if job.wants("test"):
        pairs = [row for draft in retested for row in _pair(draft, trained=True)]
        pairs += [row for draft in untrained for row in _pair(draft, trained=False)]
        samples = to_samples(job.input("golden", "test"), rows.become(pairs))
        result["test"] = samples.become([_of_its_dataset(sample) for sample in samples.rows])
    return result


def _draft(row: KreSquadRow, max_words: int) -> Draft:
    """The question, with the sentences around its answer; `context` is missing if these are too long."""
    answer, page, question_stems, sentences = row.answer, row.context, stems(row.question), sentence_spans(row.context)

    def asks_for(span: tuple[int, int]) -> int:
        sentence = next((page[start:end] for start, end in sentences if start <= span[0] < end), "")
        return len(question_stems & stems(sentence))

    spans = mentions.spans(answer, page)
    context = excerpt(page, [], max(spans, key=asks_for), max_words) if spans else None
    # Options were written as titles; an answer in lower case takes none with a capital.
    options = [option for option in row.choices if option.casefold() != answer.casefold()]
    choices = [option[:1].lower() + option[1:] if answer[:1].islower() else option for option in options]
    choices = choices if options_differ(row.choices) else []
    revisions = [option for option in choices if context and _can_replace(answer, option, context, row.question)]
    return row.draft(
        relation="none",
        context=context,
        answers=[answer],
        meta={"squad_id": row.id},
        record_number=False,
        extra={"page": page, "choices": choices, "revisions": revisions},
    )


def _is_replaceable(answer: str, context: str, question: str) -> bool:
    """Whether no trace of the answer is left where all its mentions are replaced."""
    return (
        mentions.is_replaceable(answer, context)
        and not mentions.is_part_of_a_name(answer, context)
        and not mentions.is_named(answer, mentions.without(answer, context))
        and not mentions.is_named(answer, question)
    )


def _can_replace(answer: str, option: str, context: str, question: str) -> bool:
    """Whether the other option is new to the passage and the question, and fits where the answer stands."""
    digits = (any(map(str.isdigit, text)) for text in (answer, option))
    return (
        len(set(digits)) == 1
        and max(len(answer.split()), len(option.split())) <= _MOST_WORDS
        and not mentions.is_named(option, mentions.without(answer, f"{context}\n{question}"))
        and not mentions.find(answer, option)
        and not mentions.find(option, answer)
        and not mentions.needs_other_article(answer, option, context)
    )


def _revision(draft: Draft) -> str:
    """The option of the test, which no option or seed changes."""
    revisions = draft.extra["revisions"]
    return str(revisions[draft.number % len(revisions)])


def _pair(draft: Draft, *, trained: bool) -> list[Draft]:
    """The question on the passage as it is, and revised."""
    (answer,), revision, context = draft.answers, _revision(draft), draft.context or ""
    form = replace(draft, habit=[answer], meta={**draft.meta, "trained": trained})
    revised = mentions.exchanged(context, {answer: revision})
    return [
        replace(form, id=f"{draft.number}-aligned", subset="aligned"),
        replace(form, id=f"{draft.number}-conflict", context=revised, answers=[revision], subset="conflict"),
    ]


def _of_its_dataset(sample: EventSample) -> EventSample:
    """The sample under the name of its questions, so that trained and untrained ones are scored apart."""
    if sample.meta["trained"]:
        return sample
    return sample.model_copy(update={"dataset": UNTRAINED, "meta": {**sample.meta, "source_dataset": sample.dataset}})


REVISED = source(__file__, read, options=RevisedOptions)
