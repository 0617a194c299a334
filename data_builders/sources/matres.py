"""MATRES (Ning et al., ACL 2018): does one event of a news text start before or after another?

The rows are those of the knowledge-conflict study of Fang et al. (Findings of NAACL 2024). The event that the text
names first is always the first of a pair, so that who has not read answers "before": the narrative habit. Rows for
which that is right are tagged `aligned`, the others `conflict`, the pairs included that annotators could not order.

The published texts do not mark the events, and in a third of the rows one of the words stands more than once. Which
occurrence is meant follows from the publishers' features, which hold the place of both events in tokens of a model
that is not needed here: the place as a share of the text is near enough to choose among the occurrences of a word.

`exchanged_share` asks a share of the training pairs the other way round, so that "before" pays no more than "after"
where half of them are: the counterfactual swap (`d2e data build --swap`) of a question of order.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal, get_args

from pydantic import Field

from d2e_sft.data.sample import Split, Subset
from d2e_sft.util.errors import UserError
from data_builders.raw.reader import Draft
from data_builders.raw.row import Row
from data_builders.raw.source import Input, Job, RawFile, Release, Samples, Source, SourceOptions, SplitRows, github
from data_builders.text.events import find_events, mark_events


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
# The dev rows that go against a prior: checksum and size of the published file.
_CONFLICTS = {
    "tense": ("46beb0719d4cfc6f95b5db3421c7cfb2fad4b29edfb4c762c4613074b49b0cab", 680_441),
    "roberta_erp": ("ad3c07c7e4fb2a6ee65953b36ab1389b6901c10f6b97e62b9956eacfe8f5948a", 2_541_520),
}
SUBSETS = RawFile(
    "derived/matres_subsets.json",
    sha256="3e04f72b3b565888bdd63e7a7eeee7f2ab36b9822fea3f6b1358b590b808e03b",
    bytes=99_882,
    by_hand="it is a table of row numbers that was made from the published subsets; get those instead",
    substitute="a table of the row numbers of the published subsets",
)
OPTIONS = ("before", "after", "at the same time", "unknown")
_EXCHANGED = {"before": "after", "after": "before"}
_TAGS = {"<e1>": "<e2>", "</e1>": "</e2>", "<e2>": "<e1>", "</e2>": "</e1>"}
_HABIT = "before"
# What else than the order of the text a row may go against: the tenses of the two words, or what RoBERTa-large says of
# them without the text.
Prior = Literal["tense", "roberta_erp"]
_PRIORS: tuple[Prior, ...] = get_args(Prior)
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
        bias: what a conflict row goes against: the order of the text, or a prior, which is published for dev alone.
        vague: whether pairs stay whose order annotators could not tell; their answer is "unknown".
        exchanged_share: share of the training pairs, drawn with the seed, that are asked the other way round.
    """

    bias: Literal["narrative"] | Prior = "narrative"
    vague: Literal["keep", "drop"] = "keep"
    exchanged_share: float = Field(0, ge=0, le=1)


def read(job: Job) -> dict[Split, Samples]:
    """Build train (6,336 rows), dev (6,404) and test (818: 412 aligned and 406 conflict)."""
    return {split: _read_split(job, split) for split in _SPLITS if job.wants(split)}


def _read_split(job: Job, split: Split) -> Samples:
    options = job.options
    assert isinstance(options, MatresOptions)
    raw = job.input(split)
    places = _places(job, split)

    published = list(raw.json_items())
    conflicts = {prior: _conflicts(job, prior, published) for prior in _PRIORS} if split == "dev" else {}

    draw = job.random("exchanged")
    exchanged = {row.number for row in published if split == "train" and draw.random() < options.exchanged_share}

    def parse(row: Row) -> Draft:
        if row.number not in places:
            raise row.error("e1", f"an event whose place is item {row.number:,} of {job.file(_key(split)).name}")
        against = [prior for prior, numbers in conflicts.items() if row.number in numbers]
        draft = _draft(row, places[row.number], exchanged=row.number in exchanged)
        return _tagged(draft, options.bias, against, known=split == "dev")

    rows = SplitRows(raw.parse(published, parse))
    if options.vague == "drop":
        rows.keep(
            "pairs with an order",
            "annotators could not tell the order of the others (vague=drop)",
            [row for row in rows.rows if "unknown" not in row.answers],
        )
    return rows.become(raw.parse(rows.rows, raw.sample))


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


def _draft(row: Row, places: Places, *, exchanged: bool) -> Draft:
    text, events = row.text("text"), (row.text("e1"), row.text("e2"))
    labels = row.get("labels")
    if not isinstance(labels, list) or len(labels) != 1 or labels[0] not in range(len(OPTIONS)):
        raise row.error("labels", "a list of one label: 0 before, 1 after, 2 equal, 3 vague")
    answer = OPTIONS[labels[0]]
    found = find_events(text, events, places.characters(text))
    if found is None:
        raise row.error("e1", f"a word of the text before {events[1]!r}, which is e2")
    marked = mark_events(text, *found).removeprefix(_START)
    first, second = (text[start:end] for start, end in found)
    if exchanged:
        marked, answer = re.sub(r"</?e[12]>", lambda tag: _TAGS[tag[0]], marked), _EXCHANGED.get(answer, answer)
        first, second = second, first
    sentences = [sentence.strip() for sentence in marked.split(_END) if sentence.strip()]
    return Draft(
        number=row.number,
        relation="temporal",
        context=" ".join(sentences),
        refined_context=" ".join(sentence for sentence in sentences if "<e1>" in sentence or "<e2>" in sentence),
        question=f"Does the event <e1>{first}</e1> start before or after the event <e2>{second}</e2>?",
        options=OPTIONS,
        answers=[answer],
        meta={"exchanged": True} if exchanged else {},
    )


def _tagged(draft: Draft, bias: Literal["narrative"] | Prior, against: Sequence[Prior], *, known: bool) -> Draft:
    """The row with its subset; `against` are the priors that it goes against, where they are `known`."""
    follows_text = list(draft.answers) == [_HABIT]
    meta = dict(draft.meta)
    if known:
        meta["conflicts_with"] = [*([] if follows_text else ["narrative"]), *against]
    if bias == "narrative":
        return replace(draft, subset="aligned" if follows_text else "conflict", habit=[_HABIT], meta=meta)
    # By tense a row that is no conflict may also be one whose tenses have no prior.
    other: Subset | None = "aligned" if bias == "roberta_erp" and known else None
    return replace(draft, subset="conflict" if bias in against else other, meta=meta)


def _conflicts(job: Job, prior: Prior, rows: Sequence[Row]) -> set[int]:
    """The numbers of the rows that go against a prior, of which they are published as a file of their own."""
    raw = job.input(prior, "dev")
    if job.file(prior) is SUBSETS:
        tables = raw.parse(raw.json_lines(), lambda row: _row_numbers(row.object("conflict_rows"), prior))
        return set(chain.from_iterable(tables))
    # The file keeps the order of the rows.
    following, numbers = iter(rows), set()
    for row in raw.json_items():
        same = next((other for other in following if _same_pair(other, row)), None)
        if same is None:
            raise UserError(
                f"{raw.path}, item {row.number}: no later row than the last of {job.files['dev'].path} equals it",
                remedy="take both files from the same release",
            )
        numbers.add(same.number)
    return numbers


def _same_pair(one: Row, other: Row) -> bool:
    return all(one.get(name) == other.get(name) for name in ("text", "e1", "e2", "labels"))


def _row_numbers(row: Row, name: str) -> list[int]:
    places = row.get(name)
    if not isinstance(places, list) or not all(type(place) is int for place in places):
        raise row.error(name, "a list of row numbers, counted from 0")
    return [place + 1 for place in places]


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
    study = conflict_study("MATRES/dataset_bias")
    for prior, (sha256, size) in _CONFLICTS.items():
        name = f"valid_text_features_matres_{prior}_bias.json"
        inputs.append(Input(prior, (study.file(f"matres/{name}", sha256, size, path=name), SUBSETS), ("dev",)))
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
        "priors": "meta.conflicts_with of a dev row names what it goes against: narrative (the order of the text), "
        "tense (of the two words), roberta_erp (what RoBERTa-large says of the words without the text). bias=tense "
        "and bias=roberta_erp tag dev rows by these, and no rows of other splits, for which they are not published",
        "splits": "train is TimeBank, dev AQUAINT (the file that the study calls valid), test Platinum; they share "
        "no text, but the same two words are asked about in several. dev holds 87 repeated rows and 26 pairs with "
        "two labels, as published",
        "events": "marked <e1> and <e2>; among several occurrences of a word the one nearest to the published place "
        "is marked. Places from the publishers' tokens and a table of exact offsets agree in all but 1 of 6,336 "
        "training, 50 of 6,404 dev and no test rows",
        "refined context": "the sentences in which the two events stand",
        "exchanged_share": "training pairs asked the other way round: the tags of the two events, their order in the "
        "question, and the answers before and after are exchanged; meta.exchanged says which",
    },
)
