"""MATRES (Ning et al., ACL 2018): does one event of a news text start before or after another?

The rows are those of the knowledge-conflict study of Fang et al. (Findings of NAACL 2024). The event that the text
names first is always the first of a pair, so that who has not read answers "before": the narrative habit. Rows for
which that is right are tagged `aligned`, the others `conflict`, the pairs included that annotators could not order.

The published texts do not mark the events, and in a third of the rows one of the words stands more than once. Which
occurrence is meant follows from the publishers' features, which hold the place of both events in tokens of a model
that is not needed here: the place as a share of the text is near enough to choose among the occurrences of a word.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import chain, product
from typing import Literal

from d2e_sft.data.sample import Split
from data_builders.raw.reader import Draft
from data_builders.raw.row import BadRowError, Row
from data_builders.raw.source import Input, Job, RawFile, Release, Samples, Source, SourceOptions, SplitRows, github


def conflict_study(folder: str) -> Release:
    """A folder of the repository of Fang et al."""
    return github(
        "HKUST-KnowComp/event-temporal-knowledge-conflict", "e436ef5df9440a77857bfd688c9f0a4aab89c95f", folder
    )


_FILES = conflict_study("MATRES/data")

# By split: the name that the publishers give it, the checksum and size of its texts, and those of its features.
_TEXTS = {
    "train": ("train", "14d0466bdc8642b8c6ac7afc87efd252bc67cf2dc2561c6485262d2003e168e0", 3_800_918),
    "dev": ("valid", "b8c4cbe40162d10d814623a93177067b3e320522634f1a2d628f224945457829", 4_048_408),
    "test": ("test", "28e0ccca0e8a43a35afb545f644cd8dfd3b000775080d54a01cab47a86387d9e", 496_982),
}
_FEATURES = {
    "train": (
        "train_features_matres_event_only.json",
        "04bc213b208ad29469b16fa51e70986d8ad258662c4fe9adecd2787aabf0ee4c",
        3_522_403,
    ),
    "dev": (
        "valid_features_matres_event_only.json",
        "c272a69d02a15cbc82a0418ab21b34be729f59fe8e8fbd08554d18f18836d001",
        3_708_005,
    ),
    "test": (
        "test_features_matres.json",
        "6953ce3819c0949159b50018c26e92ad918adf2bea8142b65560a7c07ec718b5",
        585_006,
    ),
}
OFFSETS = RawFile(
    "derived/matres_event_offsets.json",
    sha256="71cc645ef72850ad6bdd4430059f6d89fc801861d7678bc0e4cea784e0eaf071",
    by_hand="it is a table of character offsets that was made from the publishers' features; get those instead",
    substitute="a table of the events' character offsets that was made from the publishers' features",
)
OPTIONS = ("before", "after", "at the same time", "unknown")
_HABIT = "before"
_START, _END = "[CLS]", "[SEP]"
_SPLITS: tuple[Split, ...] = ("train", "dev", "test")


@dataclass(frozen=True)
class Places:
    """Where the two events of a row stand.

    Attributes:
        first, second: in units of which the text has `units`; None: in characters.
    """

    first: int
    second: int
    units: int | None = None

    def characters(self, text: str) -> tuple[float, float]:
        """About at which characters of the text."""
        scale = 1 if self.units is None else len(text) / self.units
        return self.first * scale, self.second * scale


class MatresOptions(SourceOptions):
    """Options of MATRES.

    Attributes:
        vague: whether pairs stay whose order annotators could not tell; their answer is "unknown".
    """

    vague: Literal["keep", "drop"] = "keep"


def read(job: Job) -> dict[Split, Samples]:
    """Build train (6,336 rows), dev (6,404) and test (818: 412 aligned and 406 conflict)."""
    return {split: _read_split(job, split) for split in _SPLITS if job.wants(split)}


def _read_split(job: Job, split: Split) -> Samples:
    raw = job.input(split)
    places = _places(job, split)

    def parse(row: Row) -> Draft:
        if row.number not in places:
            raise row.error("e1", f"an event whose place is item {row.number:,} of {job.file(_key(split)).name}")
        return _draft(row, places[row.number])

    rows = SplitRows(raw.parse(raw.json_items(), parse))
    assert isinstance(job.options, MatresOptions)
    if job.options.vague == "drop":
        rows.keep(
            "pairs with an order",
            "annotators could not tell the order of the others (vague=drop)",
            [row for row in rows.rows if "unknown" not in row.answers],
        )
    return rows.become(raw.samples(rows.rows, raw.sample))


def _key(split: Split) -> str:
    return f"{split}_positions"


def _places(job: Job, split: Split) -> dict[int, Places]:
    """By number of the row, counted from 1."""
    raw = job.input(_key(split), split)
    if job.file(_key(split)) is OFFSETS:
        tables = raw.parse(raw.json_lines(), lambda row: _offsets(row, _TEXTS[split][0]))
        return dict(enumerate(chain.from_iterable(tables), start=1))
    return dict(raw.parse(raw.json_items(), _feature_places))


def _offsets(row: Row, name: str) -> list[Places]:
    pairs = row.get(name)
    if not isinstance(pairs, list):
        raise row.error(name, "a list of pairs of character offsets")
    return [Places(*_two_numbers(row, name, pair)) for pair in pairs]


def _feature_places(row: Row) -> tuple[int, Places]:
    tokens = row.get("input_ids")
    if not isinstance(tokens, list) or not tokens:
        raise row.error("input_ids", "a list of token ids")
    return row.number, Places(*_two_numbers(row, "event_pos", row.get("event_pos")), len(tokens))


def _two_numbers(row: Row, name: str, value: object) -> tuple[int, int]:
    if not isinstance(value, list) or len(value) != 2 or not all(type(number) is int for number in value):
        raise row.error(name, "two whole numbers, the places of two events", value)
    return value[0], value[1]


def _draft(row: Row, places: Places) -> Draft:
    text, events = row.text("text"), (row.text("e1"), row.text("e2"))
    labels = row.get("labels")
    if not isinstance(labels, list) or len(labels) != 1 or labels[0] not in range(len(OPTIONS)):
        raise row.error("labels", "a list of one label: 0 before, 1 after, 2 equal, 3 vague")
    answer = OPTIONS[labels[0]]
    first, second = find_events(text, events, places.characters(text))
    sentences = mark(text, first, second)
    return Draft(
        number=row.number,
        relation="temporal",
        context=" ".join(sentences),
        refined_context=" ".join(sentence for sentence in sentences if "<e1>" in sentence or "<e2>" in sentence),
        question=f"Does the event <e1>{text[slice(*first)]}</e1> start before or after "
        f"the event <e2>{text[slice(*second)]}</e2>?",
        options=OPTIONS,
        answers=[answer],
        subset="aligned" if answer == _HABIT else "conflict",
        habit=[_HABIT],
        meta={"vague": True} if answer == "unknown" else {},
    )


def find_events(text: str, events: tuple[str, str], near: tuple[float, float]) -> list[tuple[int, int]]:
    """Where the two events stand in the text, start and end: of all occurrences the nearest to the expected places.

    An event may be given as the beginning of a word; the whole word is meant.

    Args:
        near: about where each event begins, in characters.

    Raises:
        BadRowError: no occurrence of the first stands before one of the second.
    """
    pairs = [pair for pair in product(*(_occurrences(text, event) for event in events)) if pair[0] < pair[1]]
    if not pairs:
        raise BadRowError.at("e1", events[0], f"a word of the text before {events[1]!r}, which is e2")
    best = min(pairs, key=lambda pair: sum(abs(at - place) for at, place in zip(pair, near, strict=True)))
    return [(at, _word_end(text, at + len(event))) for at, event in zip(best, events, strict=True)]


def _occurrences(text: str, event: str) -> list[int]:
    """Where the event stands at the start of a word, or, if it never does, inside one."""
    anywhere = re.escape(event)
    return [found.start() for found in re.finditer(rf"(?<![^\W\d_]){anywhere}", text)] or [
        found.start() for found in re.finditer(anywhere, text)
    ]


def _word_end(text: str, end: int) -> int:
    while text[end : end + 1].isalpha():
        end += 1
    return end


def mark(text: str, first: tuple[int, int], second: tuple[int, int]) -> list[str]:
    """The sentences of a published text, with the two events marked."""
    (a, b), (c, d) = first, second
    marked = f"{text[:a]}<e1>{text[a:b]}</e1>{text[b:c]}<e2>{text[c:d]}</e2>{text[d:]}"
    sentences = marked.removeprefix(_START).split(_END)
    return [sentence.strip() for sentence in sentences if sentence.strip()]


def _inputs() -> tuple[Input, ...]:
    inputs = []
    for split in _SPLITS:
        name, sha256, size = _TEXTS[split]
        texts = f"{name}_text_features_matres.json"
        features, features_sha256, features_size = _FEATURES[split]
        inputs += [
            Input(split, (_FILES.file(f"matres/{texts}", sha256, size, path=texts),), (split,)),
            Input(
                _key(split),
                (_FILES.file(f"matres/{features}", features_sha256, features_size, path=features), OFFSETS),
                (split,),
            ),
        ]
    return tuple(inputs)


MATRES = Source(
    name="matres",
    format="scq",
    licence="not stated by the publisher",
    homepage="https://github.com/HKUST-KnowComp/event-temporal-knowledge-conflict",
    folder="conflict/event-temporal",
    inputs=_inputs(),
    splits=_SPLITS,
    read=read,
    options=MatresOptions,
    redistribution="the publishers state no licence, and the texts are news of TimeBank, AQUAINT and Platinum",
    notes={
        "habit": "the order of the text: the first event of a pair stands first in every row, so the habit is "
        "'before', and every other row is a conflict, those with the answer 'unknown' included (vague=drop)",
        "splits": "train is TimeBank, dev AQUAINT (the file that the study calls valid), test Platinum; they share "
        "no text. dev holds 87 repeated rows and 26 pairs with two labels, as published",
        "events": "marked <e1> and <e2>; among several occurrences of a word the one nearest to the published place "
        "is marked. Places from the publishers' tokens and a table of exact offsets agree in all but 1 of 6,336 "
        "training, 51 of 6,404 dev and no test rows",
        "refined context": "the sentences in which the two events stand",
    },
)
