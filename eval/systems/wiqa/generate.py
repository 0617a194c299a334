"""Questions from influence graphs (section 3): each path asks how its first node's change affects its last one's.

The published set is a random, balanced and crowd-filtered selection of such questions; here all are written. An answer
is explained from the cause over two sentences of the paragraph to the effect:

    q_p → d_i x_i → d_j x_j → d_e q_e,   d_i = r_pX · d_X,   d_j = d_i,   d_e = r_pX · r_XY · r_Ye

The published graphs lack the annotators' alignment of X and Y with sentences, so a second file gives it:
graph id → `{"x": sentence of X, "y": sentence of Y, "d_x": "more" or "less"}`. Sentences are counted from 0; `d_x`
says whether X increases or decreases its sentence.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import StrictInt

from d2e_sft.util.errors import UserError
from eval.systems.json_file import Row, check_ids, read_json
from eval.systems.wiqa.graphs import OUT_OF_PARAGRAPH, Graph
from eval.systems.wiqa.questions import LABELS, OF_POLARITY, POLARITY, Label

_CHOICES = [{"label": "A", "text": "more"}, {"label": "B", "text": "less"}, {"label": "C", "text": "no effect"}]
_DIRECTIONS = {1: "RESULTS_IN", -1: "NOT_RESULTS_IN"}
# Nodes that are asked about changes of other paragraphs.
_ASKED = ("X", "Y", "W", "A", "D")


class Alignment(Row):
    """Sentences of X and Y, and whether X increases or decreases its sentence."""

    x: StrictInt
    y: StrictInt
    d_x: Literal["more", "less"]


def read_alignments(path: Path, graphs: Mapping[str, Graph]) -> dict[str, Alignment]:
    """Read the alignments of some graphs; UserError if the file is damaged, or does not fit the graphs."""
    found: dict[str, Alignment] = read_json(path, dict[str, Alignment])
    check_ids(path, "graph", found, graphs)
    for name, own in found.items():
        count = len(graphs[name].steps)
        if not (0 <= own.x < count and 0 <= own.y < count):
            raise UserError(f"{path}: {name}: got x={own.x}, y={own.y}; expected sentences from 0 to {count - 1}")
    return found


def explain(graph: Graph, path: tuple[str, ...], alignment: Alignment) -> dict[str, Any] | None:
    """Return the explanation of a path's answer: the directions of influence, and the sentences i and j.

    W is Y's opposite, so it has Y's sentence. None if the path misses X or both Y and W, or if the sentences are
    out of order; the published explanations leave those out too.
    """
    middle = next((node for node in ("Y", "W") if node in path), None)
    if "X" not in path or middle is None or alignment.y < alignment.x:
        return None
    to_x = graph.polarity(path[: path.index("X") + 1])
    d_i = _DIRECTIONS[to_x * POLARITY[alignment.d_x]]
    return {"di": d_i, "dj": d_i, "de": _DIRECTIONS[graph.polarity(path)], "i": alignment.x, "j": alignment.y}


def questions_of(
    graphs: Mapping[str, Graph], *, no_effect: int, seed: int, alignments: Mapping[str, Alignment] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the questions of all graphs as rows of the official format.

    Args:
        no_effect: number of questions per graph whose cause is a change outside another paragraph.
        seed: of these questions.
        alignments: of graphs whose questions get an `explanation`.
    """
    foreign: dict[str, set[str]] = {}  # change outside its paragraph → paragraphs, which may share one
    for graph in graphs.values():
        for text in (text for node in OUT_OF_PARAGRAPH for text in graph.texts.get(node, ())):
            foreign.setdefault(text, set()).add(graph.paragraph_id)
    for graph in graphs.values():
        alignment = (alignments or {}).get(graph.id)
        asked: set[tuple[str, str]] = set()
        for number, path in enumerate(sorted(graph.paths(), key=len)):
            pairs = [(cause, effect) for cause in graph.texts[path[0]] for effect in graph.texts[path[-1]]]
            # Two paths may join the same nodes (over Y and over W): they ask the same, and have one answer.
            new = [pair for pair in pairs if pair not in asked]
            asked.update(new)
            for place, pair in enumerate(new):
                row = _row(graph, pair, OF_POLARITY[graph.polarity(path)])
                kind = "EXOGENOUS_EFFECT" if path[0] in OUT_OF_PARAGRAPH else "INPARA_EFFECT"
                name = f"influence_graph:{graph.paragraph_id}:{graph.id}:{number}#{place}"
                row["metadata"] |= {"ques_id": name, "question_type": kind, "path_len": len(path)}
                if alignment and (explanation := explain(graph, path, alignment)):
                    row["explanation"] = explanation
                yield row
        causes = [text for text, paragraphs in foreign.items() if graph.paragraph_id not in paragraphs]
        effects = [text for node in _ASKED for text in graph.texts.get(node, ())]
        every = range(len(causes) * len(effects))
        drawn = random.Random(f"{seed}/{graph.id}").sample(every, min(no_effect, len(every)))
        for number, place in enumerate(drawn):
            row = _row(graph, (causes[place // len(effects)], effects[place % len(effects)]), "no_effect")
            name = f"out_of_para:{graph.paragraph_id}:{graph.id}:{number}"
            row["metadata"] |= {"ques_id": name, "question_type": "OUTOFPARA_DISTRACTOR", "path_len": 0}
            yield row


def _row(graph: Graph, ends: tuple[str, str], answer: Label) -> dict[str, Any]:
    # As in the published stems: in lower case, without punctuation at the end.
    cause, effect = (text.lower().rstrip("?. ") or text for text in ends)
    return {
        "question": {
            "stem": f"suppose {cause} happens, how will it affect {effect}.",
            "para_steps": list(graph.steps),
            "answer_label": answer,
            "answer_label_as_choice": "ABC"[LABELS.index(answer)],
            "choices": _CHOICES,
        },
        "metadata": {"ques_id": "", "graph_id": graph.id, "para_id": graph.paragraph_id},
    }
