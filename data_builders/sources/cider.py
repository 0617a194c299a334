"""CIDER (Ghosal et al., SIGDIAL 2021): does an event relation between two spans follow from a dialogue?

The file holds annotated triplets (head, relation, tail) of dialogues, all of them true. PIPER counts as many
samples as there are triplets and yet has negatives, so some of its hypotheses are corrupted triplets; its rule is
not published. The rule here: half of the triplets of each relation, drawn with the seed, become negatives.
`Causes`, `Before` and their like have a direction, so a negative is the triplet reversed. `Simutaneous` (the
file's spelling) has none, so its tail is replaced by a span of another triplet of the same dialogue. A corrupted
pair that the annotators did relate, in any way, is never used.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from d2e_sft.data.sample import Relation, Split
from data_builders.raw.reader import Draft
from data_builders.raw.row import BadRowError, Row
from data_builders.raw.source import Input, Job, Samples, Source, SplitRows, github

_FILES = github("declare-lab/CIDER", "4907cb247c2e9428e0d2b55f780b2611580b8f12", "data")

DIALOGUES = _FILES.file(
    "cider_main.json", "16f64c64694dc4565eed32829cd56592246e88c1ef274584fb807f9d4906b4fd", 2_152_967
)

# CIDER's relation → (the sample's relation, how a hypothesis says it)
RELATIONS: dict[str, tuple[Relation, str]] = {
    "Before": ("temporal", "'{head}' happens before '{tail}'."),
    "Simutaneous": ("temporal", "'{head}' happens at the same time as '{tail}'."),
    "Causes": ("causal", "'{head}' causes '{tail}'."),
    "CausesDesire": ("causal", "'{head}' causes the desire for '{tail}'."),
    "HasSubevent": ("subevent_conditional", "'{head}' has '{tail}' as a subevent."),
    "HasPrerequisite": ("subevent_conditional", "'{head}' has '{tail}' as a prerequisite."),
}
_SYMMETRIC = frozenset({"Simutaneous"})
_SPEAKER = re.compile(r"[A-Z]\w*:")


@dataclass(frozen=True)
class _Triplet:
    head: str
    relation: str
    tail: str


@dataclass(frozen=True)
class _Dialogue:
    line: int
    name: str
    text: str
    triplets: tuple[_Triplet, ...]

    def related(self, a: str, b: str) -> bool:
        return any({a, b} == {triplet.head, triplet.tail} for triplet in self.triplets)

    def spans(self) -> list[str]:
        """All heads and tails, each once, in file order."""
        return list(dict.fromkeys(span for triplet in self.triplets for span in (triplet.head, triplet.tail)))


@dataclass(frozen=True)
class _Item:
    dialogue: _Dialogue
    position: int
    gold: _Triplet


def read(job: Job) -> dict[Split, Samples]:
    """Build the test: temporal 136, causal 1,469, subevent_conditional 356 (PIPER table 7)."""
    raw = job.input("test")
    dialogues = raw.parse(raw.json_array(), _parser())
    items = SplitRows(
        [
            _Item(dialogue, position, triplet)
            for dialogue in dialogues
            for position, triplet in enumerate(dialogue.triplets)
        ]
    )
    items.keep(
        "relations between events",
        "the other relations concern properties, places, purposes and rules, or deny a relation",
        [item for item in items.rows if item.gold.relation in RELATIONS],
        unit="triplets",
    )
    negatives = draw_negatives(items.rows, job.random("negatives"))
    drafts = [_draft(item, negatives.get(place)) for place, item in enumerate(items.rows)]
    return {"test": items.become(raw.parse(drafts, raw.sample))}


def _parser() -> Callable[[Row], _Dialogue]:
    """The parser of one dialogue, the unit that is bad as a whole; it remembers the names it met."""
    met: set[str] = set()

    def parse(row: Row) -> _Dialogue:
        dialogue = _parse(row)
        if dialogue.name in met:
            raise row.error("id", "an id that no earlier dialogue has", dialogue.name)
        met.add(dialogue.name)
        return dialogue

    return parse


def _parse(row: Row) -> _Dialogue:
    triplets = row.get("triplets")
    if not isinstance(triplets, list):
        raise row.error("triplets", "a list of triplets")
    parsed = []
    for position, triplet in enumerate(triplets):
        if not isinstance(triplet, dict):
            raise BadRowError.at(f"triplets.{position}", triplet, "an object with head, relation and tail")
        within = Row(row.number, triplet, f"triplets.{position}.")
        parsed.append(_Triplet(*(within.text(name) for name in ("head", "relation", "tail"))))
    return _Dialogue(row.number, row.text("id"), one_line_a_turn(row.text("utterances")), tuple(parsed))


def one_line_a_turn(utterances: str) -> str:
    """The dialogue with one line for each turn, `A: …`.

    The file separates utterances by four spaces; a part of the dialogues also separates the sentences inside a
    turn so, and those lack the speaker's tag: they join the line before.
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
    """Corrupted triplets by position in `items`: half (rounded down) of each relation, if so many can be had."""
    wanted = {name: count // 2 for name, count in Counter(item.gold.relation for item in items).items()}
    order = list(range(len(items)))
    rng.shuffle(order)
    negatives: dict[int, _Triplet] = {}
    for index in order:
        relation = items[index].gold.relation
        corrupted = _corrupt(items[index], rng) if wanted[relation] else None
        if corrupted is not None:
            negatives[index] = corrupted
            wanted[relation] -= 1
    return negatives


def _corrupt(item: _Item, rng: random.Random) -> _Triplet | None:
    """A false version of a gold triplet, or None where the dialogue offers none that is surely false."""
    gold, dialogue = item.gold, item.dialogue
    if gold.relation not in _SYMMETRIC:
        is_gold = any((other.head, other.tail) == (gold.tail, gold.head) for other in dialogue.triplets)
        return None if is_gold or gold.head == gold.tail else _Triplet(gold.tail, gold.relation, gold.head)
    for kept, other in ((gold.head, gold.tail), (gold.tail, gold.head)):
        strangers = [
            span for span in dialogue.spans() if span not in (kept, other) and not dialogue.related(kept, span)
        ]
        if strangers:
            return _Triplet(kept, gold.relation, rng.choice(strangers))
    return None


def _draft(item: _Item, negative: _Triplet | None) -> Draft:
    relation, wording = RELATIONS[item.gold.relation]
    stated = negative or item.gold
    return Draft(
        number=item.dialogue.line,
        id=f"{item.dialogue.name}-{item.position}",
        relation=relation,
        context=item.dialogue.text,
        question=wording.format(head=stated.head, tail=stated.tail),
        answers=["positive" if negative is None else "negative"],
        meta={
            "dialogue": item.dialogue.name,
            "triplet": item.position,
            "cider_relation": item.gold.relation,
            "events": [stated.head, stated.tail],
        },
    )


CIDER = Source(
    name="cider",
    format="nli",
    licence="MIT",
    homepage="https://github.com/declare-lab/CIDER",
    inputs=(Input("test", (DIALOGUES,), ("test",)),),
    read=read,
    splits=("test",),
    notes={
        "labelling": "every published triplet is true; half of each relation (rounded down), drawn with the seed, "
        "was made false: directed relations by exchanging head and tail, Simutaneous by putting a span of another "
        "triplet of the dialogue in place of the tail (or, failing that, the head); never into a pair that the "
        "annotators related. PIPER's own rule is not published, so its negatives may differ.",
        "events": "the two events of the hypothesis; refined contexts keep their sentences and those between",
        "train": "none: the file holds every published fold, so it serves for evaluation only",
    },
)
