"""Explanations of answers (section 3): from the cause over two sentences of the paragraph to the effect.

    q_p → d_i x_i → d_j x_j → d_e q_e,   d_i = r_pX · d_X,   d_j = d_i,   d_e = r_pX · r_XY · r_Ye

The annotators' alignment of X and Y with sentences is not in the published graphs, so it is read from a file of its
own: graph id → `{"x": sentence of X, "y": sentence of Y, "d_x": "more" or "less"}`, sentences counted from 0, `d_x`
telling whether X is an increase of its sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from d2e_sft.util.errors import UserError
from eval.systems.json_file import expect_object, read_json, shown
from eval.systems.wiqa.graphs import Graph

_DIRECTIONS = {"more": 1, "less": -1}


@dataclass(frozen=True)
class Alignment:
    """Sentences of X and Y, and whether X is an increase (+1) or decrease (−1) of its sentence."""

    x: int
    y: int
    d_x: int


@dataclass(frozen=True)
class Explanation:
    """Sentences i and j and the directions of influence, each +1 or −1."""

    i: int
    j: int
    d_i: int
    d_j: int
    d_e: int


def explain(graph: Graph, path: tuple[str, ...], alignment: Alignment) -> Explanation | None:
    """The explanation of a path's answer.

    W stands for Y's opposite, so it has Y's sentence. A cause or an effect that is X or Y itself has a polarity of
    +1 to it. None where the path misses X or both Y and W, or where the sentences are out of order; the published
    explanations leave those out, too.
    """
    middle = next((node for node in ("Y", "W") if node in path), None)
    if "X" not in path or middle is None or alignment.y < alignment.x:
        return None
    to_x = graph.polarity(path[: path.index("X") + 1])
    d_i = to_x * alignment.d_x
    return Explanation(alignment.x, alignment.y, d_i, d_i, graph.polarity(path))


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
    if row.get("d_x") not in _DIRECTIONS:
        raise UserError(f"{place}, d_x: got {shown(row.get('d_x'))}; expected more or less")
    return Alignment(row["x"], row["y"], _DIRECTIONS[row["d_x"]])
