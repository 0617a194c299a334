"""TRACIE (Zhou et al., NAACL 2021): does an implicit event start or end before or after another one?

The raw rows come in pairs on one story, "before" and "after", one positive and one negative, and often once more
with starts/ends. Keeping one row for each (event1, event2, story) gives PIPER's 2,039 test samples. The positive row
of a pair comes first, so a seeded draw chooses the row, with even labels.
"""

import random
import re
from collections.abc import Sequence

from data_builders.raw.characters import DECODED
from data_builders.raw.reader import Line
from data_builders.raw.source import source
from data_builders.sources.reading import Job, SplitRows, SplitSamples, to_samples
from data_builders.sources.rows import BadRowError, Draft, clean

_PART = r"((?:(?!event: | story: |answer: )[^\t])+)"  # no second row that ran into this one
_LINE = re.compile(rf"event: {_PART} story: {_PART}\tanswer: (positive|negative)\s*")
_RELATION = re.compile(r"(.*) ((?:starts|ends) (?:before|after)) (.*)")
# A sentence in quotation marks that CSV needs: it has a comma, or a quotation with doubled marks. Other quotation
# marks are the story's own ("no").
_CSV_CELL = re.compile(r'(?<!\S)"(?=[^"]*(?:,|""))((?:[^"]|"")*)"(?!\S)')
CSV_QUOTES = "CSV quotes"


def read(job: Job) -> SplitSamples:
    """Read train (571 rows) and test (2,039 rows, PIPER table 7)."""
    samples: SplitSamples = {}
    for split in filter(job.wants, job.source.splits):
        raw = job.input(split)
        rows = SplitRows(raw.parse(raw.lines(), _draft))
        rows.keep(
            "one row for each pair of events of a story",
            "repeated contexts are excluded (PIPER); rows that differ only in starts/ends and before/after are one; "
            "a seeded draw decides which one stays, so that the labels are even",
            balanced_draw(rows.rows, job.random(split)),
        )
        samples[split] = to_samples(raw, rows)
    return samples


def _draft(line: Line) -> Draft:
    parts = _LINE.fullmatch(line.text)
    if not parts:
        raise BadRowError.at("row", line.text, "'event: … story: …', a tab, 'answer: positive' or 'answer: negative'")
    hypothesis, story, label = map(clean, parts.groups())
    relation = _RELATION.fullmatch(hypothesis)
    if not relation or _RELATION.fullmatch(relation[1]) or not story:
        raise BadRowError.at("event", hypothesis, "'<event> starts|ends before|after <event>', once, and a story")
    first, second = relation[1].strip(" ."), relation[3].strip(" .")
    return Draft(
        number=line.number,
        relation="temporal",
        context=without_csv_quotes(story),
        question=without_csv_quotes(hypothesis),
        answers=[label],
        meta={
            "temporal_relation": relation[2],
            "events": [without_csv_quotes(first), without_csv_quotes(second)],
            **({DECODED: [CSV_QUOTES]} if _CSV_CELL.search(line.text) else {}),
        },
        extra={"key": (first, second, story), "label": label},
    )


def without_csv_quotes(text: str) -> str:
    """Return the text without the quotation marks of CSV, and with single marks instead of doubled ones.

    The stories were joined from CSV cells, one sentence each: `It rained. "So, they left." "She said ""no""."`.
    """
    return _CSV_CELL.sub(lambda cell: cell[1].replace('""', '"'), text)


def balanced_draw(rows: Sequence[Draft], rng: random.Random) -> list[Draft]:
    """Draw one row for each key, in file order of the keys, with as many positives as negatives where possible.

    Keys with one label count first; those with both are then dealt to the labels at random so that they even out.
    """
    groups: dict[tuple[str, str, str], list[Draft]] = {}
    for row in rows:
        groups.setdefault(row.extra["key"], []).append(row)
    labels = {key: sorted({row.extra["label"] for row in group}) for key, group in groups.items()}
    free = [key for key, of_key in labels.items() if len(of_key) == 2]
    fixed_positive = sum(of_key == ["positive"] for of_key in labels.values())
    needed = min(max((len(groups) + 1) // 2 - fixed_positive, 0), len(free))
    positive = set(rng.sample(free, needed))
    drawn = []
    for key, group in groups.items():
        label = labels[key][0] if len(labels[key]) == 1 else ("positive" if key in positive else "negative")
        drawn.append(rng.choice([row for row in group if row.extra["label"] == label]))
    return drawn


TRACIE = source(__file__, read)
