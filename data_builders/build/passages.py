"""Put passages of other rows into contexts, after swaps: unanswerable rows, and distractors next to the right passage.

A passage is the context of another row of the same dataset and split. It has none of the accepted answers. It also
lacks a word of the question that the row's own context has. Otherwise it may answer the question in another way
("Where is the key?" asked of another story about a key). The most similar ones come first, as in a search for the
question.

An unanswerable row has such a passage instead of its context, and a refusal as its answer. Its refined context is the
whole passage, since nothing in it is relevant.
"""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

import numpy as np

from d2e_sft.data.built import SWAPPED
from d2e_sft.data.sample import EventSample, Split
from d2e_sft.util.answers import contains
from d2e_sft.util.errors import UserError
from d2e_sft.util.progress import Progress
from data_builders.build.choosing import Build
from data_builders.build.swapping import reasons
from data_builders.dataset import is_answerable, source_of
from data_builders.text.words import stems

# Option of the build, as the manifest names it → the split that it changes.
UNANSWERABLE: dict[str, Split] = {"unanswerable": "train", "unanswerable-test": "test"}
DISTRACTORS = "distractors"
REFUSAL = "not stated"  # the answer of unanswerable rows, unless own data or --refusal says another
WITHHELD = "withheld"  # key of a row's meta: the answers that its passage does not have
_BETWEEN = "\n\n"
_LABEL = "the answer is a label or an option"
_NOT_ANSWERED = "its context does not answer already"
_COPY = "the row is a swapped copy of another test row"
_SEVERAL_TURNS = "the conversation trains on several answers"
_NO_CONTEXT = "the row has no context"
_NO_PASSAGE = "no other context lacks the answers and a word of the question"


@dataclass
class Withheld:
    """The numbers of rows of one dataset that became unanswerable, and of those refused among the ones tried.

    `refusing` counts the rows that refuse already.
    """

    rows: int
    wanted: int
    refusing: int = 0
    made: int = 0
    refused: Counter[str] = field(default_factory=Counter)

    def describe(self) -> dict[str, object]:
        return {"rows": self.rows, "wanted": self.wanted, "made": self.made, "refused": dict(self.refused)}


class Passages:
    """The different contexts of a dataset's split, found by similarity."""

    def __init__(self, rows: Sequence[EventSample]) -> None:
        from scipy.sparse import csr_array  # takes long to import

        self.texts = list(dict.fromkeys(row.context for row in rows if row.context.strip()))
        self._stems = [stems(text) for text in self.texts]
        self._columns = {stem: column for column, stem in enumerate(sorted(set().union(*self._stems)))}
        pairs = [(row, self._columns[stem]) for row, row_stems in enumerate(self._stems) for stem in sorted(row_stems)]
        places, columns = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        shape = (len(self.texts), len(self._columns))
        self._has = csr_array((np.ones(len(places)), (places, columns)), shape=shape)
        counts = np.bincount(columns, minlength=len(self._columns))
        self._weights = np.log1p(len(self.texts) / np.maximum(counts, 1))  # rare words weigh more
        self._asked = {(row.question, row.context) for row in rows}

    def beside(self, row: EventSample, chance: random.Random) -> Iterator[str]:
        """Yield the passages that do not answer the row's question, the most similar first.

        Similar is what shares rare words with the question. Among equals chance decides, so that no passage means by
        itself that there is no answer.
        """
        question_stems = stems(row.question)
        topic = question_stems & stems(row.context) if is_answerable(row) else question_stems
        query = np.zeros(len(self._columns))
        query[[self._columns[stem] for stem in question_stems if stem in self._columns]] = 1.0
        similar = self._has @ (query * self._weights)
        drawn = np.array(chance.sample(range(len(self.texts)), len(self.texts)))
        for place in drawn[np.argsort(-similar[drawn], kind="stable")]:
            is_about_it, text = topic <= self._stems[place], self.texts[place]
            if not is_about_it and not any(contains(text, answer) for answer in row.answers):
                yield text

    def instead(self, row: EventSample, distractors: int, chance: random.Random) -> list[str]:
        """Return passages in the place of the row's context, with distractors; empty if its question has none left.

        With one of them, the most similar that is possible, the question was not asked yet.
        """
        passed, similar = list[str](), self.beside(row, chance)
        for text in similar:
            if (row.question, text) not in self._asked:
                self._asked.add((row.question, text))
                return [text, *islice(chain(passed, similar), distractors)]
            passed.append(text)
        return []


def put_passages(build: Build) -> None:
    """Make a share of the rows unanswerable (`--unanswerable`; test rows get a twin), and add distractors.

    UserError if a wanted share gives no row, or if no row gets a distractor.
    """
    options = build.options
    shares = {"train": options.unanswerable, "test": options.unanswerable_test}
    for option, split in UNANSWERABLE.items():
        if shares[split] and split not in build.rows:
            _require_some(option, shares[split], {})
    lacking = Counter[str]()
    for split in list(build.rows) if any(shares.values()) or options.distractors else ():
        share, rows = shares.get(split, 0.0), build.rows[split]
        placed, done = dict[int, list[EventSample]](), dict[str, Withheld]()
        for name in dict.fromkeys(map(source_of, rows)):
            places = [place for place, row in enumerate(rows) if source_of(row) == name]
            group = [rows[place] for place in places]
            passages = Passages(group)  # no context of training is tested on
            chance = build.options.random(f"{name}/{split}/passages")
            instead, done[name] = _withhold(group, share, passages, options.distractors, chance)
            refusal = _refusal_of(build, name)
            for place, row in zip(places, group, strict=True):
                texts = instead.get(row.id)
                kept = [] if texts and split == "train" else [_among(row, passages, options.distractors, chance)]
                placed[place] = kept + ([_unanswerable(row, texts, refusal)] if texts else [])
        build.rows[split] = [row for place in range(len(rows)) for row in placed[place]]
        if share:
            option = next(name for name, changed in UNANSWERABLE.items() if changed == split)
            _require_some(option, share, done)
            counts = {name: withheld.describe() for name, withheld in done.items()}
            build.parts[option] = {"share": share, "datasets": counts}
            build.warnings += [
                f"{name} {split}: {some.made:,} rows became unanswerable, and {some.refusing:,} refuse already: "
                f"together {some.made + some.refusing:,} of {some.rows + some.made * (split == 'test'):,}"
                for name, some in done.items()
                if some.refusing and some.made
            ]
            build.warnings += [
                f"{name} {split}: only {some.made:,} of {some.wanted:,} rows became unanswerable "
                f"({reasons(some.refused)})"
                for name, some in done.items()
                if some.made < some.wanted
            ]
        if options.distractors:
            lacking[split] = sum(row.meta.get(DISTRACTORS, 0) < options.distractors for row in build.rows[split])
    if options.distractors:
        _record_distractors(build, lacking)


def _withhold(
    rows: Sequence[EventSample], share: float, passages: Passages, distractors: int, chance: random.Random
) -> tuple[dict[str, list[str]], Withheld]:
    """Return id → passages instead of the context, for a share of the rows, drawn among those where it makes sense."""
    refusing = sum(not is_answerable(row) for row in rows)
    withheld, instead = Withheld(len(rows), round(share * len(rows)), refusing), dict[str, list[str]]()
    order = chance.sample(rows, len(rows)) if withheld.wanted else []
    for row in Progress(order, desc="unanswerable rows", unit="row"):
        if withheld.made == withheld.wanted:
            break
        reason = _reason_against(row)
        if not reason and (texts := passages.instead(row, distractors, chance)):
            withheld.made += 1
            chance.shuffle(texts)
            instead[row.id] = texts
        else:
            withheld.refused[reason or _NO_PASSAGE] += 1
    return instead, withheld


def _reason_against(row: EventSample) -> str:
    checks = {
        _LABEL: row.format not in ("qa", "chat"),
        _NO_CONTEXT: not row.context.strip(),
        _NOT_ANSWERED: row.subset in ("unanswerable", "irrelevant"),
        _COPY: row.split == "test" and SWAPPED in row.meta,
        _SEVERAL_TURNS: row.conversation is not None and row.conversation.loss == "all",
    }
    return next((reason for reason, holds in checks.items() if holds), "")


def _unanswerable(row: EventSample, texts: Sequence[str], refusal: str) -> EventSample:
    """The row with passages that do not answer instead of its context, and the refusal as its answer."""
    context = _BETWEEN.join(texts)
    meta = {key: value for key, value in row.meta.items() if key != SWAPPED} | {WITHHELD: row.answers}
    return row.model_copy(
        update={
            "id": f"{row.id}-unanswerable",
            "context": context,
            "refined_context": None if row.refined_context is None else context,
            "answers": [refusal],
            "rejected": [],
            "subset": "unanswerable",
            "meta": meta | ({DISTRACTORS: len(texts) - 1} if len(texts) > 1 else {}),
        }
    )


def _among(row: EventSample, passages: Passages, count: int, chance: random.Random) -> EventSample:
    """The row with its context at a random place among `count` passages; as it is if there are none, or for nli."""
    if not count or row.format == "nli" or not row.context.strip():
        return row
    distractors = list(islice(passages.beside(row, chance), count))
    if not distractors:
        return row
    before = chance.randint(0, len(distractors))
    context = _BETWEEN.join([*distractors[:before], row.context, *distractors[before:]])
    return row.model_copy(update={"context": context, "meta": {**row.meta, DISTRACTORS: len(distractors)}})


def _refusal_of(build: Build, name: str) -> str:
    """The refusal that own data declares, otherwise the build's."""
    spec = build.reading.datasets[name].source.own
    declared = spec.content.get("refusal") if spec else None
    return build.options.refusal or (declared[0] if declared else REFUSAL)


def _require_some(option: str, share: float, done: dict[str, Withheld]) -> None:
    if any(w.made for w in done.values()):
        return
    rows, refused = sum(w.rows for w in done.values()), sum((w.refused for w in done.values()), Counter[str]())
    why = reasons(refused) or (
        "the share is less than one row" if rows else f"there are no {UNANSWERABLE[option]} rows"
    )
    raise UserError(
        f"--{option} {share:g}: none of {rows:,} rows became unanswerable ({why})",
        remedy="raise the share" if rows and not refused else "drop it, or build data with free answers and contexts",
    )


def _record_distractors(build: Build, lacking: Counter[str]) -> None:
    """Record how many rows got all distractors; UserError if none did, and a warning if some got fewer."""
    count, rows = build.options.distractors, {split: len(rows) for split, rows in build.rows.items()}
    if all(lacking[split] == n for split, n in rows.items()):
        raise UserError(
            f"--distractors {count}: no row got as many ({_NO_PASSAGE}, or the rows are of format nli)",
            remedy="name fewer, or build data with more contexts",
        )
    build.parts[DISTRACTORS] = {"count": count, "rows": {split: n - lacking[split] for split, n in rows.items()}}
    build.warnings += [
        f"{split}: {lacking[split]:,} of {n:,} rows got fewer than {count} distractors ({_NO_PASSAGE})"
        for split, n in rows.items()
        if lacking[split]
    ]
