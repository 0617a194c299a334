"""WIQA's scores: two baselines and consistency (section 5.3), and the official evaluator's scores of explanations.

Consistency asks whether predictions agree with each other, right or wrong. Transitive: the prediction for X → Z
should be the product of those for X → Y and Y → Z. Disjunctive: of two questions with opposite answers, one should be
predicted as more and the other as less. Opposite questions have the same graph and cause, paths of the same length
and opposite gold answers. Questions meet in the middle by their texts, or, with the graphs' file, by other texts of
the same node.

Explanations are scored by shares of correct fields: EQDIR (de, the answer), XDIR (di, the direction of the influence
on sentence i), XSENTID (i) and YSENTID (j). A field is correct if prediction and gold both lack it. The published
evaluator never reads di, so its XDIR is always 1; here XDIR compares the values.
"""

from __future__ import annotations

import itertools
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from d2e_sft.util.table import Table, percent
from eval.compare.published.values import read_published
from eval.systems.conversations import wording
from eval.systems.labelled import Answers, Labels, accuracy_of, label_table
from eval.systems.wiqa.graphs import Graph, plain
from eval.systems.wiqa.questions import LABELS, POLARITY, TYPES, Explanation, Label, Question

MAJORITY: Label = "more"  # "correct", in the training set
RANDOM_TRANSITIVE = 1 / 3
RANDOM_DISJUNCTIVE = 2 / 9
Triple = tuple[Question, Question, Question]  # X → Y, Y → Z, X → Z


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
    groups = {"all": questions, **by_type(questions)}
    scores = {}
    for name, labels in answers.items():
        right = {kind: [labels[one.id] == one.answer for one in own] for kind, own in groups.items()}
        shares = {kind: accuracy_of(own)["accuracy"] for kind, own in right.items()}
        scores[name] = {"accuracy": shares.pop("all"), "by_type": shares}
    return scores


def by_type(questions: Sequence[Question]) -> dict[str, list[Question]]:
    """Return the questions of each type."""
    return {name: [one for one in questions if one.type == kind] for kind, name in TYPES.items()}


def consistency(asked: Sequence[Question], said: Labels, graphs: Mapping[str, Graph] | None = None) -> dict[str, Any]:
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
        values = [test(*(said[question.id] for question in questions)) for questions in found]
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


def of_people() -> float:
    """Return the published accuracy of three people, on 100 questions of the paper's test file (V1)."""
    rows = [row for table in read_published("wiqa").tables for row in table.rows]
    return next(float(row.words[-1]) for row in rows if row.name == "people") / 100


def tables(scores: Mapping[str, Any], title: str, notes: Sequence[str]) -> list[Table]:
    """Return the tables of a report: accuracy with the baselines, hops, consistency, labels."""
    low, high = scores["accuracy_interval"]
    types = list(TYPES.values())
    by_type = [scores["by_type"][name] for name in types]
    every = f"{percent(scores['accuracy'])} ({percent(low)}–{percent(high)})"
    rows = [["predictions", *(percent(row["accuracy"]) for row in by_type), every]]
    for name, row in scores["baselines"].items():
        rows.append([name, *(percent(row["by_type"][kind]) for kind in types), percent(row["accuracy"])])
    rows.append(["humans (published)", *[""] * len(types), percent(of_people())])
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
    shares = [[name, percent(row["score"]), str(row["count"]), percent(row["random"])] for name, row in groups.items()]
    return [
        Table.of(["accuracy, %", *types, "all"], rows, title),
        Table.of(["hops", "accuracy, %", "questions"], hops, "By number of hops"),
        Table.of(["consistency", "%", "groups of questions", "random, %"], shares, "Consistency"),
        *label_table(scores["counts"]),
    ]


METRICS = ("EQDIR", "XDIR", "XSENTID", "YSENTID")


def score_explanations(questions: Sequence[Question], answers: Answers) -> dict[str, Any]:
    """Return the four shares over answered questions that have a gold explanation, overall and by type.

    A question without a predicted explanation counts as one with empty fields.
    """
    explained = {name: line.explanation for name, line in answers.lines.items() if line.explanation}
    correct: dict[str, list[tuple[bool, ...]]] = {kind: [] for kind in TYPES}
    for question in questions:
        if gold := question.explanation:
            found = explained.get(question.id, Explanation())
            label = answers.labels[question.id] == question.answer
            correct[question.type].append((label, found.di == gold.di, found.i == gold.i, found.j == gold.j))
    return {
        **_shares([row for rows in correct.values() for row in rows]),
        "by_type": {name: _shares(correct[kind]) for kind, name in TYPES.items()},
        "without_gold": sum(question.explanation is None for question in questions),
        "without_prediction": sum(question.id not in explained for question in questions),
    }


def _shares(rows: Sequence[tuple[bool, ...]]) -> dict[str, Any]:
    shares = [sum(column) / len(rows) for column in zip(*rows, strict=True)] or [None] * len(METRICS)
    return {**dict(zip(METRICS, shares, strict=True)), "questions": len(rows)}


def explanation_table(scores: Mapping[str, Any]) -> Table:
    """Return the table of the shares by type and overall."""
    parts = {**scores["by_type"], "all": scores}
    rows = [[name, *(percent(row[key]) for key in METRICS), str(row["questions"])] for name, row in parts.items()]
    left_out = f", {scores['without_gold']} questions without a gold one left out" * bool(scores["without_gold"])
    silent = f", {scores['without_prediction']} predictions without one" * bool(scores["without_prediction"])
    return Table.of(["type", *METRICS, "questions"], rows, f"Explanations, %{left_out}{silent}")
