"""Influence graphs: paths and their answers, by hand, and the questions that they ask, with explanations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from d2e_sft.util.errors import UserError
from eval.systems.wiqa.graphs import Alignment, explain, questions_of, read_alignments, read_graphs
from tests.eval.systems.files import save
from tests.eval.systems.wiqa.files import GRAPH, OTHER, graphs, read_questions

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
    with pytest.raises(UserError, match="line 2: id '7' is given twice"):
        graphs(tmp_path, GRAPH, GRAPH)
    with pytest.raises(UserError, match="holds no graph"):
        read_graphs(save(tmp_path / "none.jsonl", []))


def test_questions_ask_each_pair_of_texts_once(tmp_path: Path) -> None:
    found = graphs(tmp_path)
    rows = list(questions_of({"7": found["7"]}, no_effect=0, seed=0))
    texts = {node: len(changes) for node, changes in found["7"].texts.items()}
    ends = {(path[0], path[-1]) for path in found["7"].paths()}
    assert len(rows) == sum(texts[start] * texts[end] for start, end in ends)
    assert (
        len({row["question"]["stem"] for row in rows})
        == len({row["metadata"]["ques_id"] for row in rows})
        == len(rows)
    )
    questions = read_questions(save(tmp_path / "q.jsonl", rows))
    by_ends = {(question.cause, question.effect): question for question in questions}
    drought = by_ends["a long drought", "a fuller pond"]
    assert (drought.answer, drought.hops, drought.type) == ("less", 3, "EXOGENOUS_EFFECT")
    covered = by_ends["the hill is covered", "wetter slopes"]
    assert (covered.answer, covered.hops, covered.type) == ("less", 1, "INPARA_EFFECT")
    assert drought.steps == ["Rain falls on the hill", "Water runs down the hill", "The pond fills"]
    assert drought.id.startswith("influence_graph:31:7:")


def test_questions_without_effect_take_their_cause_from_another_paragraph(tmp_path: Path) -> None:
    found = graphs(tmp_path)
    rows = [r for r in questions_of(found, no_effect=4, seed=0) if r["question"]["answer_label"] == "no_effect"]
    assert len(rows) == 8
    for question in read_questions(save(tmp_path / "q.jsonl", rows)):
        assert (question.type, question.hops) == ("OUTOFPARA_DISTRACTOR", 0)
        own, other = (found[question.graph], found["8" if question.graph == "7" else "7"])
        assert other.node_of(question.cause) in ("Z", "V", "U")
        assert own.node_of(question.cause) is None
        assert own.node_of(question.effect) in ("X", "Y", "W", "A", "D")
    again = [row for row in questions_of(found, no_effect=4, seed=0) if row["metadata"]["path_len"] == 0]
    assert again == rows
    assert [row for row in questions_of(found, no_effect=4, seed=1) if row["metadata"]["path_len"] == 0] != rows


def test_a_change_that_the_own_paragraph_knows_is_not_asked_about_as_foreign(tmp_path: Path) -> None:
    found = graphs(tmp_path, GRAPH, {**OTHER, "Z": ["dark clouds"]})
    rows = questions_of({"7": found["7"], "8": found["8"]}, no_effect=50, seed=0)
    foreign = [row["question"]["stem"] for row in rows if row["question"]["answer_label"] == "no_effect"]
    assert foreign
    assert not [stem for stem in foreign if "dark clouds happens" in stem]


@pytest.mark.parametrize(
    ("path", "d_x", "directions"),
    [
        # d_i = r_pX · d_X, d_j = d_i; d_e = the answer.
        ("VXYA", "more", ("NOT_RESULTS_IN", "NOT_RESULTS_IN")),
        ("VXYA", "less", ("RESULTS_IN", "NOT_RESULTS_IN")),
        ("ZXWD", "more", ("RESULTS_IN", "NOT_RESULTS_IN")),
        ("XY", "less", ("NOT_RESULTS_IN", "RESULTS_IN")),
        ("XYD", "more", ("RESULTS_IN", "NOT_RESULTS_IN")),
    ],
)
def test_explanation_chains(tmp_path: Path, path: str, d_x: Any, directions: tuple[str, str]) -> None:
    d_i, d_e = directions
    expected = {"di": d_i, "dj": d_i, "de": d_e, "i": 0, "j": 1}
    assert explain(graphs(tmp_path)["7"], tuple(path), Alignment(x=0, y=1, d_x=d_x)) == expected


@pytest.mark.parametrize(("path", "x", "y"), [("UY", 0, 1), ("ZX", 0, 1), ("XY", 2, 1)])
def test_paths_without_both_sentences_in_order_have_no_explanation(tmp_path: Path, path: str, x: int, y: int) -> None:
    assert explain(graphs(tmp_path)["7"], tuple(path), Alignment(x=x, y=y, d_x="more")) is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"9": {"x": 0, "y": 1, "d_x": "more"}}, "graph '9' is not in the gold file"),
        ({"7": {"x": 0, "y": 3, "d_x": "more"}}, "7: got x=0, y=3; expected sentences from 0 to 2"),
        ({"7": {"x": 0, "y": 1, "d_x": "up"}}, "7.d_x: got 'up'"),
    ],
)
def test_a_damaged_alignment_is_named(tmp_path: Path, content: Any, message: str) -> None:
    path = save(tmp_path / "a.json", content)
    with pytest.raises(UserError, match=message):
        read_alignments(path, graphs(tmp_path))
