"""Questions from influence graphs (section 3): each path asks how its first node's change affects its last one's.

The published set is a random, balanced and crowd-filtered selection of such questions; here all are written. An answer
is explained from the cause over two sentences of the paragraph to the effect:

    q_p → d_i x_i → d_j x_j → d_e q_e,   d_i = r_pX · d_X,   d_j = d_i,   d_e = r_pX · r_XY · r_Ye

The annotators' alignment of X and Y with sentences is not in the published graphs, so it is read from a file of its
own: graph id → `{"x": sentence of X, "y": sentence of Y, "d_x": "more" or "less"}`, sentences counted from 0, `d_x`
telling whether X is an increase of its sentence.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from d2e_sft.util.errors import UserError
from eval.systems.json_file import expect_object, read_json, shown
from eval.systems.wiqa.graphs import OUT_OF_PARAGRAPH, Graph
from eval.systems.wiqa.questions import LABELS, OF_POLARITY, Label

_CHOICES = [{"label": "A", "text": "more"}, {"label": "B", "text": "less"}, {"label": "C", "text": "no effect"}]
_SIGNS = {"more": 1, "less": -1}
_DIRECTIONS = {1: "RESULTS_IN", -1: "NOT_RESULTS_IN"}
# Nodes that are asked about changes of other paragraphs.
_ASKED = ("X", "Y", "W", "A", "D")


@dataclass(frozen=True)
class Alignment:
    """Sentences of X and Y, and whether X is an increase (+1) or decrease (−1) of its sentence."""

    x: int
    y: int
    d_x: int


def read_alignments(path: Path, graphs: Mapping[str, Graph]) -> dict[str, Alignment]:
    """Read the alignments of some graphs.

    Raises:
        UserError: the file is damaged, or does not fit the graphs.
    """
    content = expect_object(read_json(path), str(path))
    return {name: _alignment(value, graphs.get(name), f"{path}, graph {name!r}") for name, value in content.items()}


def _alignment(value: object, graph: Graph | None, place: str) -> Alignment:
    row = expect_object(value, place)
    if graph is None:
        raise UserError(f"{place}: there is no such graph; expected ids of the graphs' file")
    for name in ("x", "y"):
        number = row.get(name)
        if type(number) is not int or not 0 <= number < len(graph.steps):
            raise UserError(
                f"{place}, {name}: got {shown(number)}; expected a sentence from 0 to {len(graph.steps) - 1}"
            )
    if row.get("d_x") not in _SIGNS:
        raise UserError(f"{place}, d_x: got {shown(row.get('d_x'))}; expected more or less")
    return Alignment(row["x"], row["y"], _SIGNS[row["d_x"]])


def explain(graph: Graph, path: tuple[str, ...], alignment: Alignment) -> dict[str, Any] | None:
    """The explanation of a path's answer: the directions of influence, and the sentences i and j.

    W stands for Y's opposite, so it has Y's sentence. A cause or an effect that is X or Y itself has a polarity of
    +1 to it. None where the path misses X or both Y and W, or where the sentences are out of order; the published
    explanations leave those out, too.
    """
    middle = next((node for node in ("Y", "W") if node in path), None)
    if "X" not in path or middle is None or alignment.y < alignment.x:
        return None
    to_x = graph.polarity(path[: path.index("X") + 1])
    d_i = _DIRECTIONS[to_x * alignment.d_x]
    return {"di": d_i, "dj": d_i, "de": _DIRECTIONS[graph.polarity(path)], "i": alignment.x, "j": alignment.y}


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
        for node in OUT_OF_PARAGRAPH:
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
    explanation: dict[str, Any] | None,
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
        row["explanation"] = explanation
    return row


def _told(text: str) -> str:
    """As the published stems write a node's text: in lower case, without a sign at its end."""
    return text.lower().rstrip("?. ") or text
