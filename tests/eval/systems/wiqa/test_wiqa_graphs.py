"""Influence graphs: paths, polarity products, questions and explanations, against a hand-written template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from d2e_sft.util.errors import UserError
from eval.systems.wiqa.consistency import consistency
from eval.systems.wiqa.explanations import Alignment, Explanation, explain, read_alignments
from eval.systems.wiqa.generate import questions_of
from eval.systems.wiqa.graphs import Graph, read_graphs
from eval.systems.wiqa.questions import read_questions
from tests.command import d2e
from tests.eval.systems.wiqa.files import GRAPH, OTHER, save_lines

# Every path of up to three edges and its answer, worked out by hand from the template with Y → A positive.
ANSWERS = {
    "VX": -1, "ZX": 1, "XW": -1, "XY": 1, "UY": -1, "WA": -1, "WD": 1, "YA": 1, "YD": -1,
    "VXW": 1, "VXY": -1, "ZXW": -1, "ZXY": 1, "XWA": 1, "XWD": -1, "XYA": 1, "XYD": -1, "UYA": -1, "UYD": 1,
    "VXWA": -1, "VXWD": 1, "VXYA": -1, "VXYD": 1, "ZXWA": 1, "ZXWD": -1, "ZXYA": 1, "ZXYD": -1,
}  # fmt: skip


def graphs(folder: Path, *rows: dict[str, Any]) -> dict[str, Graph]:
    return read_graphs(save_lines(folder / "graphs.jsonl", rows or (GRAPH, OTHER)))


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
        ({"X": 3}, "line 1, X: got 3; expected text or a list of texts"),
        ({"paragraph": ""}, "line 1: paragraph: got ''"),
        ({"graph_id": None}, "line 1: graph_id: got None"),
        ({"Y_affects_outcome": None, "para_outcome_accelerate": [1]}, "para_outcome_accelerate: got"),
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
    questions = read_questions(save_lines(tmp_path / "q.jsonl", rows))
    by_ends = {(question.cause, question.effect): question for question in questions}
    drought = by_ends["a long drought", "a fuller pond"]
    assert (drought.answer, drought.hops, drought.type) == ("less", 3, "EXOGENOUS_EFFECT")
    covered = by_ends["the hill is covered", "wetter slopes"]
    assert (covered.answer, covered.hops, covered.type) == ("less", 1, "INPARA_EFFECT")
    assert drought.steps == ("Rain falls on the hill", "Water runs down the hill", "The pond fills")
    assert drought.id.startswith("influence_graph:31:7:")


def test_questions_without_effect_take_their_cause_from_another_paragraph(tmp_path: Path) -> None:
    found = graphs(tmp_path)
    rows = [r for r in questions_of(found, no_effect=4, seed=0) if r["question"]["answer_label"] == "no_effect"]
    assert len(rows) == 8
    for question in read_questions(save_lines(tmp_path / "q.jsonl", rows)):
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


def test_the_graphs_own_answers_are_consistent(tmp_path: Path) -> None:
    found = graphs(tmp_path)
    file = save_lines(tmp_path / "q.jsonl", questions_of(found, no_effect=3, seed=0))
    questions = read_questions(file)
    scores = consistency(questions, {question.id: question.answer for question in questions}, found)
    assert scores["transitive"]["score"] == scores["transitive"]["one_hop"]["score"] == 1
    assert scores["disjunctive"]["score"] == 1
    # Of graph 8, with one text a node: ZXY, ZXA and ZXD, ZYA and ZYD, XYA and XYD, UYA and UYD.
    eighth = [question for question in questions if question.graph == "8"]
    assert consistency(eighth, {one.id: one.answer for one in eighth})["transitive"]["count"] == 9


@pytest.mark.parametrize(
    ("path", "d_x", "expected"),
    [
        # d_i = r_pX · d_X, d_j = d_i, d_e = the answer.
        ("VXYA", 1, Explanation(0, 1, -1, -1, -1)),
        ("VXYA", -1, Explanation(0, 1, 1, 1, -1)),
        ("ZXWD", 1, Explanation(0, 1, 1, 1, -1)),
        ("XY", -1, Explanation(0, 1, -1, -1, 1)),
        ("XYD", 1, Explanation(0, 1, 1, 1, -1)),
    ],
)
def test_explanation_chains(tmp_path: Path, path: str, d_x: int, expected: Explanation) -> None:
    assert explain(graphs(tmp_path)["7"], tuple(path), Alignment(0, 1, d_x)) == expected


@pytest.mark.parametrize(("path", "x", "y"), [("UY", 0, 1), ("ZX", 0, 1), ("XY", 2, 1)])
def test_paths_without_both_sentences_in_order_have_no_explanation(tmp_path: Path, path: str, x: int, y: int) -> None:
    assert explain(graphs(tmp_path)["7"], tuple(path), Alignment(x, y, 1)) is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"9": {"x": 0, "y": 1, "d_x": "more"}}, "graph '9': there is no such graph"),
        ({"7": {"x": 0, "y": 3, "d_x": "more"}}, "graph '7', y: got 3; expected a sentence from 0 to 2"),
        ({"7": {"x": 0, "y": 1, "d_x": "up"}}, "graph '7', d_x: got 'up'"),
    ],
)
def test_a_damaged_alignment_is_named(tmp_path: Path, content: Any, message: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=message):
        read_alignments(path, graphs(tmp_path))


def test_the_command_writes_questions_with_explanations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = save_lines(tmp_path / "graphs.jsonl", [GRAPH, OTHER])
    (tmp_path / "a.json").write_text(json.dumps({"7": {"x": 0, "y": 1, "d_x": "more"}}))
    out = tmp_path / "new" / "questions.jsonl"
    call = ("wiqa-questions", "--graphs", file, "--out", out, "--no-effect", 2)
    assert d2e(*call, "--alignments", tmp_path / "a.json") == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    explained = [row for row in rows if "explanation" in row]
    assert f"{len(rows)} questions of 2 graphs" in capsys.readouterr().out
    assert explained
    assert {row["metadata"]["graph_id"] for row in explained} == {"7"}
    for row in explained:
        answer = {"RESULTS_IN": "more", "NOT_RESULTS_IN": "less"}[row["explanation"]["de"]]
        assert answer == row["question"]["answer_label"]
    assert d2e("wiqa-questions", "--help") == 0
    assert "Example: d2e wiqa-questions" in capsys.readouterr().out
    assert d2e("wiqa-questions", "--graphs", tmp_path / "none.jsonl", "--out", out) == 1
    assert "none.jsonl: cannot be read" in capsys.readouterr().err
