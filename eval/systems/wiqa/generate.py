"""Questions from influence graphs (section 3): each path asks how its first node's change affects its last one's.

The published set is a random, balanced and crowd-filtered selection of such questions; here all are written.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from eval.systems.wiqa.explanations import Alignment, Explanation, explain
from eval.systems.wiqa.graphs import OUT_OF_PARAGRAPH, Graph
from eval.systems.wiqa.labels import LABELS, OF_POLARITY, Label

_CHOICES = [{"label": "A", "text": "more"}, {"label": "B", "text": "less"}, {"label": "C", "text": "no effect"}]
_DIRECTIONS = {1: "RESULTS_IN", -1: "NOT_RESULTS_IN"}
# Changes that other paragraphs' questions take over, and nodes they are asked about.
_FOREIGN = OUT_OF_PARAGRAPH
_ASKED = ("X", "Y", "W", "A", "D")


def questions_of(
    graphs: Mapping[str, Graph], *, no_effect: int, seed: int, alignments: Mapping[str, Alignment] | None = None
) -> Iterator[dict[str, Any]]:
    """The questions of all graphs as rows of the official format.

    Args:
        no_effect: for each graph so many questions whose cause is a change outside another paragraph.
        seed: of these.
        alignments: of graphs whose questions get an `explanation`.
    """
    foreign = _changes_outside(graphs)
    for graph in graphs.values():
        alignment = (alignments or {}).get(graph.id)
        asked: set[tuple[str, str]] = set()
        for number, path in enumerate(sorted(graph.paths(), key=len)):
            explanation = explain(graph, path, alignment) if alignment else None
            pairs = [(cause, effect) for cause in graph.texts[path[0]] for effect in graph.texts[path[-1]]]
            # Two paths may join the same nodes (over Y and over W): they ask the same, and have one answer.
            new = [pair for pair in pairs if pair not in asked]
            asked.update(new)
            for place, (cause, effect) in enumerate(new):
                name = f"influence_graph:{graph.paragraph_id}:{graph.id}:{number}#{place}"
                kind = "EXOGENOUS_EFFECT" if path[0] in OUT_OF_PARAGRAPH else "INPARA_EFFECT"
                answer = OF_POLARITY[graph.polarity(path)]
                yield _row(graph, name, cause, effect, answer, kind, len(path), explanation)
        yield from _without_effect(graph, foreign, no_effect, random.Random(f"{seed}/{graph.id}"))


def _without_effect(
    graph: Graph, foreign: Mapping[str, set[str]], wanted: int, rng: random.Random
) -> Iterator[dict[str, Any]]:
    causes = [text for text, paragraphs in foreign.items() if graph.paragraph_id not in paragraphs]
    effects = [text for node in _ASKED for text in graph.texts.get(node, ())]
    pairs = range(len(causes) * len(effects))
    for number, pair in enumerate(rng.sample(pairs, min(wanted, len(pairs)))):
        cause, effect = causes[pair // len(effects)], effects[pair % len(effects)]
        name = f"out_of_para:{graph.paragraph_id}:{graph.id}:{number}"
        yield _row(graph, name, cause, effect, "no_effect", "OUTOFPARA_DISTRACTOR", 0, None)


def _changes_outside(graphs: Mapping[str, Graph]) -> dict[str, set[str]]:
    """Text → paragraphs of every change that is not told by its paragraph; several may have the same."""
    paragraphs: dict[str, set[str]] = {}
    for graph in graphs.values():
        for node in _FOREIGN:
            for text in graph.texts.get(node, ()):
                paragraphs.setdefault(text, set()).add(graph.paragraph_id)
    return paragraphs


def _row(
    graph: Graph,
    name: str,
    cause: str,
    effect: str,
    answer: Label,
    kind: str,
    length: int,
    explanation: Explanation | None,
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "question": {
            "stem": f"suppose {_told(cause)} happens, how will it affect {_told(effect)}.",
            "para_steps": list(graph.steps),
            "answer_label": answer,
            "answer_label_as_choice": "ABC"[LABELS.index(answer)],
            "choices": _CHOICES,
        },
        "metadata": {
            "ques_id": name,
            "graph_id": graph.id,
            "para_id": graph.paragraph_id,
            "question_type": kind,
            "path_len": length,
        },
    }
    if explanation is not None:
        row["explanation"] = {
            "di": _DIRECTIONS[explanation.d_i],
            "dj": _DIRECTIONS[explanation.d_j],
            "de": _DIRECTIONS[explanation.d_e],
            "i": explanation.i,
            "j": explanation.j,
        }
    return row


def _told(text: str) -> str:
    """As the published stems write a node's text: in lower case, without a sign at its end."""
    return text.lower().rstrip("?. ") or text


def written(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as a file of the official format."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
