"""CIDER (Ghosal et al., SIGDIAL 2021): does an event relation between two spans follow from a dialogue?

All annotated triplets (head, relation, tail) are true, and PIPER's rule for false ones is not published. Here half of
the triplets of each relation, drawn with the seed, become negatives. They are reversed; `Simutaneous` (the file's
spelling) has no direction, so it gets a span of another triplet of the dialogue instead. A pair that the annotators
related in any way is never a negative.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from d2e_sft.data.sample import Relation
from data_builders.raw.source import source
from data_builders.sources.reading import Job, SplitSamples, convert, keep_if, read_splits
from data_builders.sources.rows import Draft, Form, RawInput, RawObject, RawRow, Text

# CIDER's relation → (the sample's relation, the wording of a hypothesis)
RELATIONS: dict[str, tuple[Relation, str]] = {
    "Before": ("temporal", "'{0.head}' happens before '{0.tail}'."),
    "Simutaneous": ("temporal", "'{0.head}' happens at the same time as '{0.tail}'."),
    "Causes": ("causal", "'{0.head}' causes '{0.tail}'."),
    "CausesDesire": ("causal", "'{0.head}' causes the desire for '{0.tail}'."),
    "HasSubevent": ("subevent_conditional", "'{0.head}' has '{0.tail}' as a subevent."),
    "HasPrerequisite": ("subevent_conditional", "'{0.head}' has '{0.tail}' as a prerequisite."),
}
_SPEAKER = re.compile(r"[A-Z]\w*:")


class _Triplet(RawObject):
    head: Text
    relation: Text
    tail: Text


class _Dialogue(RawRow):
    id: Text
    utterances: Text
    triplets: list[_Triplet]

    def items(self) -> Iterator[_Item]:
        return (_Item(self, position, triplet) for position, triplet in enumerate(self.triplets))


class _Item(NamedTuple):
    dialogue: _Dialogue
    position: int
    gold: _Triplet


BETWEEN_EVENTS = keep_if(
    "relations between events",
    "the other relations concern properties, places, purposes and rules, or deny a relation",
    lambda item: item.gold.relation in RELATIONS,
    unit="triplets",
)


def read(job: Job) -> SplitSamples:
    """Read the test: temporal 136, causal 1,469, subevent_conditional 356 (PIPER table 7)."""

    def drafts(items: Sequence[_Item]) -> list[Draft]:
        negatives = draw_negatives(items, job.random("negatives"))
        return [_draft(item, negatives.get(place)) for place, item in enumerate(items)]

    return read_splits(job, Form(_Dialogue, _Dialogue.items, RawInput.json_array), (BETWEEN_EVENTS, convert(drafts)))


def one_line_a_turn(utterances: str) -> str:
    """Return the dialogue with one line for each turn, `A: …`.

    The file separates utterances by four spaces. Some dialogues also separate the sentences of a turn in this way;
    these have no speaker and join the line before.
    """
    turns: list[str] = []
    for part in utterances.split("    "):
        utterance = " ".join(part.split())
        if turns and not _SPEAKER.match(utterance):
            turns[-1] = f"{turns[-1]} {utterance}".rstrip()
        elif utterance:
            turns.append(utterance)
    return "\n".join(turns)


def draw_negatives(items: Sequence[_Item], rng: random.Random) -> dict[int, _Triplet]:
    """Return corrupted triplets by position in `items`: half (rounded down) of each relation, or as many as exist."""
    quotas = {name: count // 2 for name, count in Counter(item.gold.relation for item in items).items()}
    order = list(range(len(items)))
    rng.shuffle(order)
    negatives: dict[int, _Triplet] = {}
    for index in order:
        relation = items[index].gold.relation
        corrupted = _corrupt(items[index], rng) if quotas[relation] else None
        if corrupted is not None:
            negatives[index] = corrupted
            quotas[relation] -= 1
    return negatives


def _corrupt(item: _Item, rng: random.Random) -> _Triplet | None:
    """A false version of a gold triplet, or None if the dialogue offers none that is surely false."""
    gold = item.gold
    pairs = [(triplet.head, triplet.tail) for triplet in item.dialogue.triplets]
    if gold.relation != "Simutaneous":
        if gold.head == gold.tail or (gold.tail, gold.head) in pairs:
            return None
        return _Triplet(head=gold.tail, relation=gold.relation, tail=gold.head)
    spans = list(dict.fromkeys(span for pair in pairs for span in pair))
    for kept in (gold.head, gold.tail):
        related = {kept, *(span for pair in pairs if kept in pair for span in pair)}
        if strangers := [span for span in spans if span not in related]:
            return _Triplet(head=kept, relation=gold.relation, tail=rng.choice(strangers))
    return None


def _draft(item: _Item, negative: _Triplet | None) -> Draft:
    relation, wording = RELATIONS[item.gold.relation]
    stated = negative or item.gold
    return Draft(
        number=item.dialogue.number,
        id=f"{item.dialogue.id}-{item.position}",
        relation=relation,
        context=one_line_a_turn(item.dialogue.utterances),
        question=wording.format(stated),
        answers=["positive" if negative is None else "negative"],
        meta={
            "dialogue": item.dialogue.id,
            "triplet": item.position,
            "cider_relation": item.gold.relation,
            "events": [stated.head, stated.tail],
        },
    )


CIDER = source(__file__, read)
