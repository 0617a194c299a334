"""TRACIE (Zhou et al., NAACL 2021): does an implicit event start or end before or after another one?

The raw rows come in pairs on one story, "before" and "after", one positive and one negative, and often once more
with starts/ends. PIPER excludes repeated contexts and reports 2,039 test samples. That count is met by keeping one
row for each (event1, event2, story), with the two words of the relation ignored and blanks and full stops around
the events stripped. The positive row of a pair always comes first, so "keep the first" would leave positives only:
which row stays is a seeded draw that makes the labels even.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from d2e_sft.data.sample import NLI_LABELS, Split
from data_builders.raw.characters import DECODED
from data_builders.raw.reader import Draft, Line, RawInput
from data_builders.raw.row import BadRowError, clean, one_of
from data_builders.raw.source import Input, Job, Samples, Source, SplitRows, github

_FILES = github("allenai/tracie", "3dcf3a4d3ef35f43679a054dcb7fa745e395619c", "data")

TRAIN = _FILES.file(
    "iid/tracie_train.txt", "7f8774abf836655bcf83ddd453eb08cba53dfa47b2eba960515d8757cc89d3ec", 399_919
)
TEST = _FILES.file(
    "iid/tracie_test.txt", "63b3c217028a21e05b9d0eabb223671a23532e326f4550765cf6e015bb5d9070", 1_454_424
)

_TAB = "\t"
_RELATION = re.compile(r" (starts|ends) (before|after) ")
# A sentence in quotation marks that needs them in CSV: it holds a comma, or a quotation, whose marks stand twice.
# Other quotation marks are the story's own ("no").
_CSV_CELL = re.compile(r'(?<!\S)"(?=[^"]*(?:,|""))((?:[^"]|"")*)"(?!\S)')
CSV_QUOTES = "CSV quotes"


@dataclass(frozen=True, kw_only=True)
class _Row(Draft):
    key: tuple[str, str, str]
    label: str


def read(job: Job) -> dict[Split, Samples]:
    """Build train (571 rows) and test (2,039 rows, PIPER table 7)."""
    splits: tuple[Split, ...] = ("train", "test")
    return {split: _read_split(job, job.input(split)) for split in splits if job.wants(split)}


def _read_split(job: Job, raw: RawInput) -> Samples:
    rows = SplitRows(raw.parse(raw.lines(), _parse))
    rows.keep(
        "one row for each pair of events of a story",
        "repeated contexts are excluded (PIPER); rows that differ only in starts/ends and before/after are one; "
        "which of them stays is drawn with the seed so that the labels are even",
        balanced_draw(rows.rows, job.random(raw.split)),
    )
    return rows.become(raw.parse(rows.rows, raw.sample))


def _parse(line: Line) -> _Row:
    text = line.text
    body, _, answer = text.partition(_TAB)
    if text.count(_TAB) != 1:
        raise BadRowError.at("row", text, "'event: … story: …', one tab, 'answer: …'")
    if not answer.startswith("answer: "):
        raise BadRowError.at("answer", answer, f"'answer: ' and one of {list(NLI_LABELS)}")
    label = one_of("answer", clean(answer.removeprefix("answer: ")), NLI_LABELS)
    event, mark, story = body.partition(" story: ")
    story = clean(story)
    if not event.startswith("event: ") or not mark or not story:
        raise BadRowError.at("event", body, "'event: <hypothesis> story: <story>'")
    if body.count("event: ") > 1 or body.count(" story: ") > 1 or "answer: " in body:
        raise BadRowError.at("event", body, "one row a line: 'event: ' and ' story: ' once, no 'answer: '")
    hypothesis = clean(event.removeprefix("event: "))
    found = list(_RELATION.finditer(hypothesis))
    if len(found) != 1:
        raise BadRowError.at("event", hypothesis, "'<event> starts|ends before|after <event>', once")
    first, second = hypothesis[: found[0].start()].strip(" ."), hypothesis[found[0].end() :].strip(" .")
    return _Row(
        number=line.number,
        relation="temporal",
        context=without_csv_quotes(story),
        question=without_csv_quotes(hypothesis),
        answers=[label],
        meta={
            "temporal_relation": found[0].group().strip(),
            "events": [without_csv_quotes(first), without_csv_quotes(second)],
            **({DECODED: [CSV_QUOTES]} if _CSV_CELL.search(body) else {}),
        },
        key=(first, second, story),
        label=label,
    )


def without_csv_quotes(text: str) -> str:
    """The text without the marks that CSV put around sentences with a comma or a quotation, and within the latter.

    The stories were joined of CSV cells, a sentence each: `It rained. "So, they left." "She said ""no""." He slept.`
    """
    return _CSV_CELL.sub(lambda cell: cell[1].replace('""', '"'), text)


def balanced_draw(rows: Sequence[_Row], rng: random.Random) -> list[_Row]:
    """One row of each key, in file order of the keys, with as many positives as negatives where keys allow it.

    Keys that have one label only are counted first; the keys that have both are then dealt to the two labels
    at random, in the numbers that even them out.
    """
    groups: dict[tuple[str, str, str], list[_Row]] = {}
    for row in rows:
        groups.setdefault(row.key, []).append(row)
    labels = {key: sorted({row.label for row in group}) for key, group in groups.items()}
    free = [key for key, found in labels.items() if len(found) == 2]
    fixed_positive = sum(found == ["positive"] for found in labels.values())
    wanted = min(max((len(groups) + 1) // 2 - fixed_positive, 0), len(free))
    positive = set(rng.sample(free, wanted))
    drawn = []
    for key, group in groups.items():
        label = labels[key][0] if len(labels[key]) == 1 else ("positive" if key in positive else "negative")
        drawn.append(rng.choice([row for row in group if row.label == label]))
    return drawn


TRACIE = Source(
    name="tracie",
    format="nli",
    licence="Apache-2.0",
    homepage="https://github.com/allenai/tracie",
    inputs=(Input("train", (TRAIN,), ("train",)), Input("test", (TEST,), ("test",))),
    read=read,
    notes={
        "events": "the two events of the hypothesis; refined contexts keep their sentences and those between",
        "count": "2,039 is the published number of test samples; the key that gives it was found by trying keys, "
        "so the chosen rows need not be the authors' rows",
    },
)
