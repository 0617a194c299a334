"""WIQA's scores: accuracy by type of question and number of hops (Table 2, Figure 3), baselines and consistency.

The two baselines are rules: the training set's most frequent label, and words' polarities. Consistency asks whether
predictions agree with each other (section 5.3), right or wrong.

Transitive: One graph has questions about X → Y, Y → Z and X → Z. The prediction for X → Z should be the product of the
other two (1/3 by chance, with "no effect"). Disjunctive: If two questions have opposite answers, one should be
predicted as more and the other as less (2/9 by chance).

Opposite questions are in one graph and have the same cause, paths of the same length and opposite gold answers. By
the graphs' template their effects are the nodes Y and W, or the outcome's increase and decrease. Questions meet in
the middle by their texts, or, with the graphs' file, by other texts of the same node.
"""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from d2e_sft.util.table import Table, percent
from eval.compare.measures.measure import Measure, digest, shares
from eval.score.statistics import bootstrap_average
from eval.systems.conversations import wording
from eval.systems.wiqa.graphs import Graph, plain
from eval.systems.wiqa.questions import LABELS, POLARITY, TYPES, Label, Labels, Question

MAJORITY: Label = "more"  # "correct", in the training set
RANDOM_TRANSITIVE = 1 / 3
RANDOM_DISJUNCTIVE = 2 / 9
Triple = tuple[Question, Question, Question]  # X → Y, Y → Z, X → Z


def score(asked: Sequence[Question], labels: Labels, graphs: Mapping[str, Graph] | None, seed: int) -> dict[str, Any]:
    """Return all scores of some questions.

    Args:
        labels: a label for each question; None could not be read and is wrong.
        seed: of the interval and of the polarity baseline's random labels.
    """
    right = {question.id: labels[question.id] == question.answer for question in asked}
    interval = bootstrap_average([[float(right[question.id]) for question in asked]], seed=seed)
    unparsed = sum(labels[question.id] is None for question in asked)
    hops = sorted({question.hops for question in asked if question.hops})
    return {
        "accuracy": interval.mean,
        "accuracy_interval": [interval.low, interval.high],
        "by_type": _by_type(asked, right),
        "by_hops": {str(number): _accuracy([q for q in asked if q.hops == number], right) for number in hops},
        "counts": {
            "questions": len(asked),
            "gold": _label_counts(question.answer for question in asked),
            "predicted": _label_counts(labels[question.id] for question in asked),
        },
        "unparsed": {"share": unparsed / len(asked), "questions": unparsed},
        "consistency": consistency(asked, labels, graphs),
        "baselines": baselines(asked, seed),
    }


def measures(asked: Sequence[Question], labels: Labels) -> list[Measure]:
    """Return accuracy question by question, over all and by type."""
    right = {question.id: float(labels[question.id] == question.answer) for question in asked}
    gold = digest({question.id: question.answer for question in asked})
    found = shares("accuracy", "questions", gold, right)
    for kind, name in TYPES.items():
        own = {question.id: right[question.id] for question in asked if question.type == kind}
        found += shares(f"accuracy, {name}", "questions", gold, own)
    return found


def _by_type(questions: Sequence[Question], right: Mapping[str, bool]) -> dict[str, dict[str, Any]]:
    return {name: _accuracy([q for q in questions if q.type == kind], right) for kind, name in TYPES.items()}


def _accuracy(questions: Sequence[Question], right: Mapping[str, bool]) -> dict[str, Any]:
    share = sum(right[question.id] for question in questions) / len(questions) if questions else None
    return {"accuracy": share, "questions": len(questions)}


def _label_counts(labels: Iterable[Label | None]) -> dict[str, int]:
    counts = Counter(labels)
    return {label: counts[label] for label in LABELS}


@cache
def lexicon() -> dict[str, int]:
    """Return word → polarity, +1 or −1."""
    content = wording("wiqa/polarity")
    return {word: sign for sign, name in ((1, "more"), (-1, "less")) for word in content[name]}


def polarity_of(text: str) -> int | None:
    """Return the polarity (+1 or −1) of the first word of a change that is in the lexicon; None if no word is."""
    return next((lexicon()[word] for word in re.findall(r"[a-z]+", text.lower()) if word in lexicon()), None)


def by_polarity(question: Question, seed: int) -> Label:
    """Answer more if cause and effect have the same polarity, else less; a random label if one lacks a polarity."""
    cause, effect = polarity_of(question.cause), polarity_of(question.effect)
    if cause is None or effect is None:
        return random.Random(f"{seed}/{question.id}").choice(LABELS)
    return "more" if cause == effect else "less"


def baselines(questions: Sequence[Question], seed: int) -> dict[str, Any]:
    """Return the accuracy of both baselines, overall and by type."""
    answers: dict[str, dict[str, Label]] = {
        "majority": {question.id: MAJORITY for question in questions},
        "polarity": {question.id: by_polarity(question, seed) for question in questions},
    }
    scores = {}
    for name, labels in answers.items():
        right = {question.id: labels[question.id] == question.answer for question in questions}
        by_type = {kind: row["accuracy"] for kind, row in _by_type(questions, right).items()}
        scores[name] = {"accuracy": sum(right.values()) / len(right), "by_type": by_type}
    return scores


def consistency(
    asked: Sequence[Question], labels: Labels, graphs: Mapping[str, Graph] | None = None
) -> dict[str, Any]:
    """Return both scores; None if no questions belong together. An answer that could not be read agrees with nothing.

    `one_hop` counts the triples whose first two questions are single edges, as the paper does.
    """
    groups: dict[str, list[Question]] = defaultdict(list)
    alike: dict[tuple[str, str, int], list[Question]] = defaultdict(list)
    for question in asked:
        if question.hops and question.cause:
            groups[question.graph].append(question)
            alike[question.graph, plain(question.cause), question.hops].append(question)
    triples = [triple for name, group in groups.items() for triple in _triples(group, (graphs or {}).get(name))]
    pairs = [
        (one, other)
        for group in alike.values()
        for one, other in itertools.combinations(group, 2)
        if POLARITY[one.answer] * POLARITY[other.answer] == -1 and plain(one.effect) != plain(other.effect)
    ]
    edges = [triple for triple in triples if triple[0].hops == triple[1].hops == 1]

    def share(test: Callable[..., bool], found: Sequence[Sequence[Question]]) -> dict[str, Any]:
        values = [test(*(labels[question.id] for question in questions)) for questions in found]
        return {"score": sum(values) / len(values) if values else None, "count": len(values)}

    return {
        "transitive": {
            **share(is_transitive, triples),
            "one_hop": share(is_transitive, edges),
            "random": RANDOM_TRANSITIVE,
        },
        "disjunctive": {**share(is_disjunctive, pairs), "random": RANDOM_DISJUNCTIVE},
    }


def is_transitive(first: Label | None, second: Label | None, whole: Label | None) -> bool:
    """Return whether the answer for X → Z is the product of those for X → Y and Y → Z."""
    if first is None or second is None or whole is None:
        return False
    return POLARITY[first] * POLARITY[second] == POLARITY[whole]


def is_disjunctive(one: Label | None, other: Label | None) -> bool:
    """Return whether one of two answers is more and the other less."""
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
    """Return what two questions meet in: a node of the graph if it is known, else the text."""
    node = None if graph is None else graph.node_of(text)
    return plain(text) if node is None else f"node {node}"


def tables(scores: dict[str, Any], title: str, notes: list[str]) -> list[Table]:
    """Return the tables of a report: accuracy with the baselines, hops, consistency, labels."""
    low, high = scores["accuracy_interval"]
    types = list(TYPES.values())
    by_type = [scores["by_type"][name] for name in types]
    every = f"{percent(scores['accuracy'])} ({percent(low)}–{percent(high)})"
    rows = [["predictions", *(percent(row["accuracy"]) for row in by_type), every]]
    for name, row in scores["baselines"].items():
        rows.append([name, *(percent(row["by_type"][kind]) for kind in types), percent(row["accuracy"])])
    rows.append(["questions", *(str(row["questions"]) for row in by_type), str(scores["counts"]["questions"])])
    rows.append(["unparsed", *[""] * len(types), percent(scores["unparsed"]["share"])])
    rows += [[f"note: {note}", *[""] * (len(types) + 1)] for note in notes]
    hops = [[name, percent(row["accuracy"]), str(row["questions"])] for name, row in scores["by_hops"].items()]
    transitive, disjunctive = scores["consistency"]["transitive"], scores["consistency"]["disjunctive"]
    groups = {
        "transitive": transitive,
        "transitive, over single hops": {**transitive, **transitive["one_hop"]},
        "disjunctive": disjunctive,
    }
    consistent = [
        [name, percent(row["score"]), str(row["count"]), percent(row["random"])] for name, row in groups.items()
    ]
    gold, predicted = scores["counts"]["gold"], scores["counts"]["predicted"]
    labels = [[label, str(gold[label]), str(predicted[label])] for label in LABELS]
    return [
        Table.of(["accuracy, %", *types, "all"], rows, title),
        Table.of(["hops", "accuracy, %", "questions"], hops, "By number of hops"),
        Table.of(["consistency", "%", "groups of questions", "random, %"], consistent, "Consistency"),
        Table.of(["label", "gold", "predicted"], labels, "By label"),
    ]
