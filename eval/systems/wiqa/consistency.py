"""Whether predictions agree with each other (section 5.3), right or wrong.

Transitive: where X → Y, Y → Z and X → Z were asked about in one graph, the prediction for X → Z is to be the product
of the other two (1/3 by chance, as "no effect" can be predicted, too). Disjunctive: of two questions known to have
opposite answers, one is to be predicted as more and the other as less (2/9 by chance).

Opposite are questions of one graph with the same cause, paths of the same length and opposite gold answers: by the
graphs' template their effects are the nodes Y and W, or the outcome's increase and decrease. Questions meet in the
middle by their texts; with the graphs' file also by other texts of the same node.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from eval.systems.wiqa.graphs import Graph, plain
from eval.systems.wiqa.labels import POLARITY, Label
from eval.systems.wiqa.questions import Question

RANDOM_TRANSITIVE = 1 / 3
RANDOM_DISJUNCTIVE = 2 / 9
Answers = Mapping[str, Label | None]
Triple = tuple[Question, Question, Question]  # X → Y, Y → Z, X → Z
Pair = tuple[Question, Question]


def consistency(
    questions: Sequence[Question], answers: Answers, graphs: Mapping[str, Graph] | None = None
) -> dict[str, Any]:
    """Both scores; None where no questions belong together. An answer that could not be read agrees with nothing.

    `one_hop` counts the triples whose first two are single edges, which the paper looks at.
    """
    asked = [question for question in questions if question.id in answers and question.hops and question.cause]
    groups: dict[str, list[Question]] = defaultdict(list)
    for question in asked:
        groups[question.graph].append(question)
    triples = [triple for name, group in groups.items() for triple in _triples(group, (graphs or {}).get(name))]
    pairs = [pair for group in groups.values() for pair in _opposites(group)]
    edges = [triple for triple in triples if triple[0].hops == triple[1].hops == 1]
    return {
        "transitive": {
            **_share(is_transitive(*(answers[question.id] for question in triple)) for triple in triples),
            "one_hop": _share(is_transitive(*(answers[question.id] for question in triple)) for triple in edges),
            "random": RANDOM_TRANSITIVE,
        },
        "disjunctive": {
            **_share(is_disjunctive(*(answers[question.id] for question in pair)) for pair in pairs),
            "random": RANDOM_DISJUNCTIVE,
        },
    }


def is_transitive(first: Label | None, second: Label | None, whole: Label | None) -> bool:
    """Whether the answer for X → Z is the product of those for X → Y and Y → Z."""
    if first is None or second is None or whole is None:
        return False
    return POLARITY[first] * POLARITY[second] == POLARITY[whole]


def is_disjunctive(one: Label | None, other: Label | None) -> bool:
    """Whether two answers are more and less, in either order."""
    return {one, other} == {"more", "less"}


def _triples(questions: Sequence[Question], graph: Graph | None) -> Iterator[Triple]:
    by_ends: dict[tuple[str, str], list[Question]] = defaultdict(list)
    by_cause: dict[str, list[Question]] = defaultdict(list)
    for question in questions:
        by_ends[plain(question.cause), plain(question.effect)].append(question)
        by_cause[_meeting(question.cause, graph)].append(question)
    for first in questions:
        for second in by_cause[_meeting(first.effect, graph)]:
            for whole in by_ends[plain(first.cause), plain(second.effect)]:
                yield first, second, whole


def _meeting(text: str, graph: Graph | None) -> str:
    """What two questions meet in: a node of the graph where it is known, else the text."""
    node = None if graph is None else graph.node_of(text)
    return plain(text) if node is None else f"node {node}"


def _opposites(questions: Sequence[Question]) -> Iterator[Pair]:
    groups: dict[tuple[str, int], list[Question]] = defaultdict(list)
    for question in questions:
        groups[plain(question.cause), question.hops].append(question)
    for group in groups.values():
        for one, other in itertools.combinations(group, 2):
            if POLARITY[one.answer] * POLARITY[other.answer] == -1 and plain(one.effect) != plain(other.effect):
                yield one, other


def _share(values: Iterable[bool]) -> dict[str, Any]:
    found = list(values)
    return {"score": sum(found) / len(found) if found else None, "count": len(found)}
