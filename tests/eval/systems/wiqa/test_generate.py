"""Questions that graphs ask, with their explanations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from d2e_sft.util.errors import UserError
from eval.systems.wiqa.generate import Alignment, explain, questions_of, read_alignments
from eval.systems.wiqa.questions import read_questions
from tests.eval.systems.wiqa.files import GRAPH, OTHER, graphs, save_lines


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
    assert drought.steps == ["Rain falls on the hill", "Water runs down the hill", "The pond fills"]
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
    path = tmp_path / "a.json"
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=message):
        read_alignments(path, graphs(tmp_path))
