"""Influence graphs (section 3): a template of eight nodes, its paths with their polarities, and questions from them.

The edges are the same in all graphs: X leads to Y and prevents W; Z causes X, V prevents it; U prevents Y; Y and W
lead to the outcome's increase (A) and decrease (D), with signs that `Y_affects_outcome` gives. Each path asks how its
first node's change affects its last one's; all such questions are written. An answer is explained over two sentences:

    q_p → d_i x_i → d_j x_j → d_e q_e,   d_i = r_pX · d_X,   d_j = d_i,   d_e = r_pX · r_XY · r_Ye

The published graphs lack the annotators' alignment of X and Y with sentences (counted from 0), so a second file gives
it: graph id → `{"x": sentence of X, "y": sentence of Y, "d_x": whether X is "more" or "less" of its sentence}`.
"""

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, StrictInt

from d2e_sft.util.errors import UserError
from eval.systems.reading import GoldRow, Text, check_ids, read_json, read_json_lines, read_unique
from eval.systems.wiqa.gold import LABELS, OF_POLARITY, POLARITY, TYPES, Label

OUTCOMES = ("A", "D")
OUT_OF_PARAGRAPH = ("Z", "V")
_EDGES = {("V", "X"): -1, ("Z", "X"): 1, ("X", "W"): -1, ("X", "Y"): 1, ("U", "Y"): -1}
_OUTCOME_EDGES = {("Y", "A"): 1, ("Y", "D"): -1, ("W", "A"): -1, ("W", "D"): 1}
_SIGNS = {"a": 1, "more": 1, True: 1, "d": -1, "less": -1, False: -1}
MOST_HOPS = 3
Texts = Annotated[tuple[str, ...], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)]


class Graph(GoldRow):
    """One influence graph, with the changes that each node stands for."""

    model_config = ConfigDict(coerce_numbers_to_str=True)

    id: Text = Field(alias="graph_id")
    paragraph_id: Text = Field(alias="para_id")
    paragraph: Text
    V: Texts = ()
    Z: Texts = ()
    X: Texts = ()
    U: Texts = ()
    W: Texts = ()
    Y: Texts = ()
    A: Texts = Field((), alias="para_outcome_accelerate")
    D: Texts = Field((), alias="para_outcome_decelerate")
    affects_outcome: Any = Field(alias="Y_affects_outcome")

    @cached_property
    def texts(self) -> dict[str, tuple[str, ...]]:
        """The distinct texts of each node that has some."""
        by_node = {node: [text.strip() for text in getattr(self, node) if text.strip()] for node in "VZXUWYAD"}
        return {node: tuple(dict.fromkeys(texts)) for node, texts in by_node.items() if texts}

    @cached_property
    def edges(self) -> dict[tuple[str, str], int]:
        """(from, to) → polarity, +1 or −1, of the edges between nodes with texts."""
        value = self.affects_outcome
        sign = _SIGNS.get(value, 0) if isinstance(value, str | bool) else 0
        edges = {**_EDGES, **{edge: sign * polarity for edge, polarity in _OUTCOME_EDGES.items() if sign}}
        return {(a, b): polarity for (a, b), polarity in edges.items() if a in self.texts and b in self.texts}

    @property
    def steps(self) -> tuple[str, ...]:
        """The paragraph's sentences, which the file joins with full stops."""
        return tuple(step for part in self.paragraph.split(". ") if (step := part.strip().rstrip(".")))

    def paths(self) -> Iterator[tuple[str, ...]]:
        """Yield every path of 1 to 3 edges, as its nodes; no path begins at an outcome."""
        for node in self.texts:
            yield from self._onward((node,))

    def _onward(self, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        for source, target in self.edges:
            if source == path[-1] and target not in path:
                longer = (*path, target)
                yield longer
                if len(longer) <= MOST_HOPS:
                    yield from self._onward(longer)

    def polarity(self, path: tuple[str, ...]) -> int:
        """Return the answer of a path: the product of its edges' polarities."""
        return math.prod(self.edges[edge] for edge in itertools.pairwise(path))

    def node_of(self, text: str) -> str | None:
        """Return the node that a text belongs to, comparing letters and digits only."""
        return self._nodes.get(plain(text))

    @cached_property
    def _nodes(self) -> dict[str, str]:
        """Plain text → its node, the first where two have the same text."""
        pairs = [(plain(text), node) for node, texts in self.texts.items() for text in texts]
        return dict(reversed(pairs))


def plain(text: str) -> str:
    """Return a text's letters and digits in lower case; question stems write node texts a little differently."""
    return "".join(char for char in text.casefold() if char.isalnum())


def read_graphs(path: Path) -> dict[str, Graph]:
    """Read `wiqa_influence_graphs.jsonl`: graph id → graph; UserError if the file is damaged."""
    graphs: dict[str, Graph] = read_unique(read_json_lines(path, Graph), "id")
    if not graphs:
        raise UserError(f"{path}: holds no graph; expected WIQA's influence graphs, one per line")
    return graphs


_CHOICES = [{"label": "A", "text": "more"}, {"label": "B", "text": "less"}, {"label": "C", "text": "no effect"}]
_DIRECTIONS = {1: "RESULTS_IN", -1: "NOT_RESULTS_IN"}
# Nodes that are asked about changes of other paragraphs.
_ASKED = ("X", "Y", "W", "A", "D")


class Alignment(GoldRow):
    """Sentences of X and Y, and whether X increases or decreases its sentence."""

    x: StrictInt
    y: StrictInt
    d_x: Literal["more", "less"]


def read_alignments(path: Path, graphs: Mapping[str, Graph]) -> dict[str, Alignment]:
    """Read the alignments of some graphs; UserError if the file is damaged, or does not fit the graphs."""
    alignments: dict[str, Alignment] = read_json(path, dict[str, Alignment])
    check_ids(path, "graph", alignments, graphs)
    for name, aligned in alignments.items():
        count = len(graphs[name].steps)
        if not (0 <= aligned.x < count and 0 <= aligned.y < count):
            raise UserError(
                f"{path}: {name}: got x={aligned.x}, y={aligned.y}; expected sentences from 0 to {count - 1}"
            )
    return alignments


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

    `no_effect` is the number of questions per graph whose cause is a change outside another paragraph. Those with
    `alignments` get an `explanation`.
    """
    foreign: dict[str, set[str]] = {}  # change outside its paragraph → paragraphs, which may share one
    for graph in graphs.values():
        for text in (text for node in OUT_OF_PARAGRAPH for text in graph.texts.get(node, ())):
            foreign.setdefault(text, set()).add(graph.paragraph_id)
    for graph in graphs.values():
        alignment = (alignments or {}).get(graph.id)
        seen: set[tuple[str, str]] = set()
        for number, path in enumerate(sorted(graph.paths(), key=len)):
            pairs = [(cause, effect) for cause in graph.texts[path[0]] for effect in graph.texts[path[-1]]]
            # Two paths may join the same nodes (over Y and over W): they ask the same, and have one answer.
            new = [pair for pair in pairs if pair not in seen]
            seen.update(new)
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
        numbers = range(len(causes) * len(effects))
        drawn = random.Random(f"{seed}/{graph.id}").sample(numbers, min(no_effect, len(numbers)))
        for number, place in enumerate(drawn):
            row = _row(graph, (causes[place // len(effects)], effects[place % len(effects)]), "no_effect")
            name = f"out_of_para:{graph.paragraph_id}:{graph.id}:{number}"
            row["metadata"] |= {"ques_id": name, "question_type": "OUTOFPARA_DISTRACTOR", "path_len": 0}
            yield row


def balanced(rows: Sequence[dict[str, Any]], seed: int) -> list[dict[str, Any]]:
    """Draw as many questions of each type and of each answer as there are, and return them in order (section 3).

    Half of the in-paragraph and half of the out-of-paragraph questions are more, the others less.
    """
    groups = grouped(rows)
    effects = [kind for kind in TYPES if kind != "OUTOFPARA_DISTRACTOR"]
    weights = {(kind, answer): 1 for kind in effects for answer in ("more", "less")}
    weights["OUTOFPARA_DISTRACTOR", "no_effect"] = 2
    count = min(len(groups.get(group, ())) // times for group, times in weights.items())
    rng = random.Random(f"{seed}/balanced")
    chosen = {place for group, times in weights.items() for place in rng.sample(groups.get(group, []), count * times)}
    return [row for place, row in enumerate(rows) if place in chosen]


def grouped(rows: Sequence[dict[str, Any]]) -> dict[tuple[str, str], list[int]]:
    groups: dict[tuple[str, str], list[int]] = {}
    for place, row in enumerate(rows):
        groups.setdefault((row["metadata"]["question_type"], row["question"]["answer_label"]), []).append(place)
    return groups


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
