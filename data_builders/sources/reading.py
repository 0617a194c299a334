"""From the files of a source to its samples: filters with a name and a reason, and reading all splits through them."""

import random
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from d2e_sft.data.sample import EventSample, Split
from d2e_sft.util.answers import contains, on_one_line
from d2e_sft.util.errors import UserError
from data_builders.raw.reader import RawInput
from data_builders.raw.row import Draft
from data_builders.raw.source import SPLITS, Job, Samples, SplitRows, SplitSamples
from data_builders.sources.rows import Form, contains_any, fingerprint

T = TypeVar("T")
Forms = Form[Any] | Mapping[Split, Form[Any]]  # how to read the files; by split where they differ


@dataclass(frozen=True)
class Filter:
    """Leaves rows out, or converts them; name, reason and counts are recorded in the manifest.

    Attributes:
        name: Empty for a conversion, which is not recorded.
        keep: (rows, rows of the splits read before) → the rows that stay.
    """

    name: str
    reason: str
    keep: Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]
    splits: tuple[Split, ...] = SPLITS
    unit: str = "rows"


def keep_if(name: str, reason: str, test: Callable[[Any], object], **where: Any) -> Filter:
    """Keep the rows that pass a test; `where` has the filter's `splits` and `unit`."""
    return Filter(name, reason, lambda rows, _: [row for row in rows if test(row)], **where)


def keep_first(name: str, reason: str, key: Callable[[Any], Hashable], **where: Any) -> Filter:
    """Keep the first row of each key; in training unless `splits` says otherwise."""
    return Filter(name, reason, lambda rows, _: first_of_each(rows, key), **{"splits": ("train",), **where})


def keep_unseen(name: str, reason: str, *keys: Callable[[Any], Hashable], **where: Any) -> Filter:
    """Keep the training rows that share no key with a row of the splits read before; an empty key is never shared."""

    def keep(rows: Sequence[Any], before: Sequence[Any]) -> list[Any]:
        taken = [{key(row) for row in before} - {""} for key in keys]
        return [row for row in rows if not any(key(row) in met for key, met in zip(keys, taken, strict=True))]

    return Filter(name, reason, keep, **{"splits": ("train",), **where})


def keep_short(title: str, reason: str, limit: int | None, **where: Any) -> list[Filter]:
    """Keep the rows with a context of at most `limit` words; no filter without a limit."""

    def is_short(row: Draft) -> bool:
        return row.context is not None and limit is not None and len(row.context.split()) <= limit

    return [] if limit is None else [keep_if(f"{title} {limit:,} words", reason, is_short, **where)]


def convert(change: Callable[[Sequence[Any]], Iterable[Any]], splits: tuple[Split, ...] = SPLITS) -> Filter:
    """Convert all rows of a split, for example to drafts."""
    return Filter("", "", lambda rows, _: list(change(rows)), splits)


def first_of_each(rows: Iterable[T], key: Callable[[T], Hashable]) -> list[T]:
    first: dict[Hashable, T] = {}
    for row in rows:
        first.setdefault(key(row), row)
    return list(first.values())


def join_answers(drafts: Iterable[Draft], key: Callable[[Draft], Iterable[object]]) -> list[Draft]:
    """Return the first draft of each key, with the answers of all that have this key."""
    groups: dict[tuple[object, ...], list[Draft]] = {}
    for draft in drafts:
        groups.setdefault(tuple(key(draft)), []).append(draft)
    joined = (dict.fromkeys(answer for draft in group for answer in draft.answers) for group in groups.values())
    return [replace(group[0], answers=answers) for group, answers in zip(groups.values(), joined, strict=True)]


NO_BLANK = keep_if(
    "no blank answer",
    "samples with a blank answer are excluded (PIPER)",
    lambda row: row.answers and all((*row.answers, *row.options)),
)
UNSEEN_CONTEXTS = keep_unseen(
    "contexts of the test",
    "the test has the same context (ignoring letter case, blanks and punctuation)",
    lambda row: fingerprint(row.context),
)
NEW_QUESTIONS = keep_first(
    "repeated questions",
    "a repeated context and question would be trained on twice; the first is kept",
    lambda row: (row.context, row.question),
)


def apply_filters(
    rows: SplitRows[Any], filters: Iterable[Filter], split: Split, before: Sequence[Any] = ()
) -> SplitRows[Any]:
    """Apply a split's filters in order; `before` are the rows of the splits read before."""
    for step in filters:
        if split in step.splits:
            kept = step.keep(rows.rows, before)
            if step.name:
                rows.keep(step.name, step.reason, kept, step.unit)
            else:
                rows.rows = kept
    return rows


def move_share(
    rows: SplitRows[T], key: Callable[[T], Hashable], share: float, rng: random.Random, noun: str, unit: str = "rows"
) -> list[T]:
    """Move the rows of a drawn share of the keys from a test to training; `noun` is the plural of the key."""
    keys = list(dict.fromkeys(map(key, rows.rows)))
    drawn = set(rng.sample(keys, round(share * len(keys))))
    moved = [row for row in rows.rows if key(row) in drawn]
    if moved:
        kept = [row for row in rows.rows if key(row) not in drawn]
        rows.keep(f"{noun} of the training rows", "their aligned rows are trained on (train_share)", kept, unit)
    return moved


def to_samples(raw: RawInput | Callable[[Draft], RawInput], drafts: SplitRows[Draft]) -> Samples:
    """Turn drafts of one file, or each of its own, into samples; those that `EventSample` rejects are bad rows."""
    if isinstance(raw, RawInput):
        return drafts.become(raw.parse(drafts.rows, raw.sample))
    files = [(draft, raw(draft)) for draft in drafts.rows]
    return drafts.become([sample for draft, file in files for sample in file.parse([draft], file.sample)])


def read_splits(job: Job, form: Forms, filters: Sequence[Filter] = ()) -> SplitSamples:
    """Read all wanted splits of a dataset that has one file per split, through filters whose last rows are drafts.

    The test is read first, then dev, then train, so that filters can keep the later splits apart from the earlier.
    """
    samples: SplitSamples = {}
    before: list[Any] = []
    for split in filter(job.files.__contains__, reversed(SPLITS)):
        raw = job.input(split)
        rows = (form if isinstance(form, Form) else form[split]).read(raw)
        if job.wants(split):
            samples[split] = to_samples(raw, apply_filters(SplitRows(rows), filters, split, before))
        before += rows
    return {split: samples[split] for split in SPLITS if split in samples}


def reader(form: Forms, filters: Sequence[Filter] = ()) -> Callable[[Job], SplitSamples]:
    """Return `read_splits` for a form and filters that depend on no option."""
    return lambda job: read_splits(job, form, filters)


def read_source(job: Job) -> SplitSamples:
    """Read the wanted splits, filtered by `answer_in_context`; UserError if this is on and the answers are labels."""
    in_context = job.options.answer_in_context
    if in_context and job.source.format == "nli":
        raise UserError(
            f"{job.source.name}.answer_in_context=true: its answers are labels, which no context has",
            remedy="leave the option out",
        )
    samples = job.source.read(job)
    for rows in samples.values() if in_context else ():
        reason = "PIPER leaves out samples whose answer is not in the context (section 2.1); letter case is ignored"
        rows.keep("answer in the context", reason, [row for row in rows.rows if repeats_answer(row)])
    return samples


def repeats_answer(sample: EventSample) -> bool:
    """Return whether the context has an accepted answer, ignoring letter case, line breaks and a chat's full stop."""
    stop = "." if sample.format == "chat" else ""
    answers = [answer.removesuffix(stop) for answer in sample.answers]
    return contains_any(sample.context, answers) or contains_any(on_one_line(sample.context), answers)


def has_answer(sample: EventSample) -> bool:
    """Return whether the context repeats an accepted answer, or has its words with other marks and blanks."""
    return repeats_answer(sample) or any(contains(sample.context, text, signs=True) for text in sample.answers)
