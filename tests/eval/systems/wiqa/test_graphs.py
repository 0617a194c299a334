"""Influence graphs: paths and their answers, by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from d2e_sft.util.errors import UserError
from eval.systems.wiqa.graphs import read_graphs
from tests.eval.systems.wiqa.files import GRAPH, graphs, save_lines

# Every path of up to three edges and its answer, worked out by hand from the template with Y → A positive.
ANSWERS = {
    "VX": -1, "ZX": 1, "XW": -1, "XY": 1, "UY": -1, "WA": -1, "WD": 1, "YA": 1, "YD": -1,
    "VXW": 1, "VXY": -1, "ZXW": -1, "ZXY": 1, "XWA": 1, "XWD": -1, "XYA": 1, "XYD": -1, "UYA": -1, "UYD": 1,
    "VXWA": -1, "VXWD": 1, "VXYA": -1, "VXYD": 1, "ZXWA": 1, "ZXWD": -1, "ZXYA": 1, "ZXYD": -1,
}  # fmt: skip


def test_paths_have_one_to_three_edges_and_answers_are_products(tmp_path: Path) -> None:
    graph = graphs(tmp_path)["7"]
    assert {"".join(path): graph.polarity(path) for path in graph.paths()} == ANSWERS


def test_where_y_hinders_the_outcome_its_edges_change_signs(tmp_path: Path) -> None:
    graph = graphs(tmp_path)["8"]
    found = {"".join(path): graph.polarity(path) for path in graph.paths()}
    # No V and no W: neither they nor paths through them are there.
    assert found == {
        "ZX": 1, "XY": 1, "UY": -1, "YA": -1, "YD": 1, "ZXY": 1, "XYA": -1, "XYD": 1, "UYA": 1, "UYD": -1,
        "ZXYA": -1, "ZXYD": 1,
    }  # fmt: skip


def test_a_graph_without_effect_on_the_outcome_ends_at_y_and_w(tmp_path: Path) -> None:
    graph = graphs(tmp_path, {**GRAPH, "Y_affects_outcome": "-"})["7"]
    assert {path[-1] for path in graph.paths()} == {"X", "Y", "W"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"X": 3}, "line 1: X: got 3"),
        ({"paragraph": ""}, "line 1: paragraph: got ''"),
        ({"graph_id": None}, "line 1: graph_id: got None"),
        ({"para_outcome_accelerate": [[1]]}, "para_outcome_accelerate.0: got"),
    ],
)
def test_a_damaged_graph_is_named_with_its_line(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        graphs(tmp_path, {**GRAPH, **change})


def test_a_graph_given_twice_or_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="line 2: graph_id '7' is given twice"):
        graphs(tmp_path, GRAPH, GRAPH)
    with pytest.raises(UserError, match="holds no graph"):
        read_graphs(save_lines(tmp_path / "none.jsonl", []))
