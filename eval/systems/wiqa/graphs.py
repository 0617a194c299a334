"""Influence graphs: WIQA's template of eight nodes, the paths through it and their polarities (section 3).

In the published file a line is one graph with the texts of its nodes; the edges are the same in all. X leads to Y and
prevents W; Z brings X about, V prevents it; U prevents Y; and Y and W lead to the outcome's increase (A) and decrease
(D), with signs that `Y_affects_outcome` gives.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from d2e_sft.util.errors import UserError
from eval.systems.json_file import expect_text, read_json_lines, shown

NODES = ("V", "Z", "X", "U", "W", "Y", "A", "D")
OUTCOMES = ("A", "D")
OUT_OF_PARAGRAPH = ("Z", "V")
_FIELDS = {"A": "para_outcome_accelerate", "D": "para_outcome_decelerate"}
_EDGES = {("V", "X"): -1, ("Z", "X"): 1, ("X", "W"): -1, ("X", "Y"): 1, ("U", "Y"): -1}
_ACCELERATES = ("a", "more", True)
_DECELERATES = ("d", "less", False)
MOST_HOPS = 3


@dataclass(frozen=True)
class Graph:
    """One influence graph.

    Attributes:
        texts: node → the changes it stands for; nodes without a text are left out, and so are their edges.
        edges: (from, to) → polarity, +1 or −1.
    """

    id: str
    paragraph_id: str
    steps: tuple[str, ...]
    texts: Mapping[str, tuple[str, ...]]
    edges: Mapping[tuple[str, str], int]

    def paths(self) -> Iterator[tuple[str, ...]]:
        """Every path of 1 to 3 edges, as its nodes; outcomes begin none."""
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
        """The answer of a path: the product of its edges' polarities."""
        return math.prod(self.edges[edge] for edge in itertools.pairwise(path))

    def node_of(self, text: str) -> str | None:
        """The node that a text belongs to, letter case and other signs than letters and digits aside."""
        return self._nodes.get(plain(text))

    @cached_property
    def _nodes(self) -> dict[str, str]:
        """Plain text → its node, the first where two have the same text."""
        nodes: dict[str, str] = {}
        for node, texts in self.texts.items():
            for text in texts:
                nodes.setdefault(plain(text), node)
        return nodes


def plain(text: str) -> str:
    """A text's letters and digits alone, in lower case: question stems write node texts a little differently."""
    return "".join(char for char in text.casefold() if char.isalnum())


def read_graphs(path: Path) -> dict[str, Graph]:
    """Read `wiqa_influence_graphs.jsonl`: graph id → graph.

    Raises:
        UserError: the file is damaged; line, field, value and expectation are named.
    """
    graphs: dict[str, Graph] = {}
    for place, row in read_json_lines(path):
        graph = _graph(row, place)
        if graph.id in graphs:
            raise UserError(f"{place}: graph_id {graph.id!r} is given twice; expected each once")
        graphs[graph.id] = graph
    if not graphs:
        raise UserError(f"{path}: holds no graph; expected WIQA's influence graphs, one a line")
    return graphs


def _graph(row: dict[str, Any], place: str) -> Graph:
    found = {
        node: _texts(row.get(_FIELDS.get(node, node), []), f"{place}, {_FIELDS.get(node, node)}") for node in NODES
    }
    texts = {node: changes for node, changes in found.items() if changes}
    edges = {**_EDGES, **_outcome_edges(row, place)}
    return Graph(
        id=_name(row, "graph_id", place),
        paragraph_id=_name(row, "para_id", place),
        steps=_steps(expect_text(row, "paragraph", place)),
        texts=texts,
        edges={edge: sign for edge, sign in edges.items() if edge[0] in texts and edge[1] in texts},
    )


def _outcome_edges(row: dict[str, Any], place: str) -> dict[tuple[str, str], int]:
    """The edges from Y and W, which are opposites; none where Y has no effect on the outcome."""
    if "Y_affects_outcome" not in row:
        raise UserError(f"{place}: Y_affects_outcome: missing; expected a, d, or another text for no effect")
    value = row["Y_affects_outcome"]
    sign = 1 if value in _ACCELERATES else -1 if value in _DECELERATES else 0
    if not sign:
        return {}
    return {("Y", "A"): sign, ("Y", "D"): -sign, ("W", "A"): -sign, ("W", "D"): sign}


def _texts(value: Any, place: str) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise UserError(f"{place}: got {shown(value)}; expected text or a list of texts")
    return tuple(dict.fromkeys(text.strip() for text in texts if text.strip()))


def _name(row: dict[str, Any], name: str, place: str) -> str:
    value = row.get(name)
    return str(value) if type(value) is int else expect_text(row, name, place)


def _steps(paragraph: str) -> tuple[str, ...]:
    """The paragraph's sentences, which the file joins by full stops."""
    return tuple(step for part in paragraph.split(". ") if (step := part.strip().rstrip(".")))
