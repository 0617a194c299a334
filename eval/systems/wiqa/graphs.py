"""Influence graphs: WIQA's template of eight nodes, the paths through it and their polarities (section 3).

Each line of the published file is one graph with the texts of its nodes; the edges are the same in all graphs. X leads
to Y and prevents W; Z causes X, V prevents it; U prevents Y; and Y and W lead to the outcome's increase (A) and
decrease (D), with signs that `Y_affects_outcome` gives.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field

from d2e_sft.util.errors import UserError
from eval.systems.json_file import Row, Text, read_json_lines

OUTCOMES = ("A", "D")
OUT_OF_PARAGRAPH = ("Z", "V")
_EDGES = {("V", "X"): -1, ("Z", "X"): 1, ("X", "W"): -1, ("X", "Y"): 1, ("U", "Y"): -1}
_OUTCOME_EDGES = {("Y", "A"): 1, ("Y", "D"): -1, ("W", "A"): -1, ("W", "D"): 1}
_SIGNS = {"a": 1, "more": 1, True: 1, "d": -1, "less": -1, False: -1}
MOST_HOPS = 3
Texts = Annotated[tuple[str, ...], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)]


class Graph(Row):
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
        listed = {node: [text.strip() for text in getattr(self, node) if text.strip()] for node in "VZXUWYAD"}
        return {node: tuple(dict.fromkeys(texts)) for node, texts in listed.items() if texts}

    @cached_property
    def edges(self) -> dict[tuple[str, str], int]:
        """(from, to) → polarity, +1 or −1, of the edges between nodes with texts."""
        value = self.affects_outcome
        sign = _SIGNS.get(value, 0) if isinstance(value, str | bool) else 0
        edges = {**_EDGES, **{edge: sign * own for edge, own in _OUTCOME_EDGES.items() if sign}}
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
    graphs: dict[str, Graph] = {}
    for place, graph in read_json_lines(path, Graph):
        if graph.id in graphs:
            raise UserError(f"{place}: graph_id {graph.id!r} is given twice; expected each once")
        graphs[graph.id] = graph
    if not graphs:
        raise UserError(f"{path}: holds no graph; expected WIQA's influence graphs, one per line")
    return graphs
