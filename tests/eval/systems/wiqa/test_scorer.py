"""Accuracy, baselines, consistency and explanations, by hand and on the published questions."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from eval.systems.wiqa import scorer
from eval.systems.wiqa.graphs import questions_of
from eval.systems.wiqa.questions import LABELS
from eval.systems.wiqa.system import WIQA, WiqaScoreOptions
from tests.eval.systems.files import save
from tests.eval.systems.wiqa.files import GRAPH, QUESTIONS, graphs, question, read_questions, score

RIGHT = {row["metadata"]["ques_id"]: row["question"]["answer_label"] for row in QUESTIONS}


def test_accuracy_by_type_and_hops(tmp_path: Path) -> None:
    scores = score(tmp_path, {**RIGHT, "q1": "less", "q3": None, "q6": "more"})
    assert scores["accuracy"] == 3 / 6
    assert {name: row["accuracy"] for name, row in scores["by_type"].items()} == {
        "in-paragraph": 2 / 3,
        "out-of-paragraph": 1 / 2,
        "no effect": 0,
    }
    assert scores["by_hops"] == {"1": {"accuracy": 1 / 3, "questions": 3}, "2": {"accuracy": 1, "questions": 2}}
    assert scores["unparsed"] == {"share": 1 / 6, "questions": 1}
    low, high = scores["accuracy_interval"]
    assert low < 0.5 < high


def test_transitive_consistency_needs_the_product_of_the_two(tmp_path: Path) -> None:
    right = score(tmp_path, RIGHT)["consistency"]["transitive"]
    # q1 · q2 = q4 is the one triple by texts.
    assert (right["score"], right["count"], right["one_hop"]) == (1, 1, {"score": 1, "count": 1})
    for answers, expected in (
        ({"q1": "less", "q4": "less"}, 1),
        ({"q1": "less", "q2": "less"}, 1),
        ({"q1": "less"}, 0),
        ({"q1": "no_effect", "q4": "no_effect"}, 1),
        ({"q4": None}, 0),
    ):
        assert score(tmp_path, {**RIGHT, **answers})["consistency"]["transitive"]["score"] == expected, answers


def test_with_the_graphs_questions_meet_in_other_words_of_a_node(tmp_path: Path) -> None:
    more = [*QUESTIONS, question("q7", "wetter slopes", "a fuller pond", "more", "INPARA_EFFECT", 2)]
    answers = {**RIGHT, "q7": "more"}
    graphs = save(tmp_path / "graphs.jsonl", [GRAPH])
    assert score(tmp_path, answers, more)["consistency"]["transitive"]["count"] == 1
    # q2 and q7 meet in Y, which they call by different texts, and make q5; the letter case of q5 does not matter.
    assert score(tmp_path, answers, more, graphs=graphs)["consistency"]["transitive"]["count"] == 2


def test_disjunctive_consistency_needs_more_and_less(tmp_path: Path) -> None:
    found = score(tmp_path, RIGHT)["consistency"]["disjunctive"]
    assert (found["score"], found["count"]) == (1, 1)  # q2 and q3: same cause, same length, opposite answers
    for answers, expected in (({"q2": "less", "q3": "more"}, 1), ({"q3": "more"}, 0), ({"q3": "no_effect"}, 0)):
        assert score(tmp_path, {**RIGHT, **answers})["consistency"]["disjunctive"]["score"] == expected


def test_the_random_values_are_those_of_all_combinations() -> None:
    triples = list(itertools.product(LABELS, repeat=3))
    assert sum(scorer.is_transitive(*triple) for triple in triples) / len(triples) == scorer.RANDOM_TRANSITIVE
    pairs = list(itertools.product(LABELS, repeat=2))
    assert sum(scorer.is_disjunctive(*pair) for pair in pairs) / len(pairs) == scorer.RANDOM_DISJUNCTIVE


@pytest.mark.parametrize(
    ("text", "polarity"),
    [("more rain", 1), ("FEWER bees, more honey", -1), ("there is no rain", -1), ("dark clouds", None)],
)
def test_the_first_word_of_the_lexicon_decides(text: str, polarity: int | None) -> None:
    assert scorer.polarity_of(text) == polarity


def test_baselines_of_hand_worked_questions(tmp_path: Path) -> None:
    questions = read_questions(save(tmp_path / "gold.jsonl", QUESTIONS))
    found = scorer.baselines(questions, seed=0)
    assert found["majority"]["accuracy"] == 4 / 6
    assert found["majority"]["by_type"]["no effect"] == 0
    by_id = {one.id: one for one in questions}
    assert [scorer.by_polarity(by_id[name], 0) for name in ("q2", "q3")] == ["more", "less"]
    drawn = {scorer.by_polarity(by_id["q6"], seed) for seed in range(40)}
    assert drawn == set(LABELS), "a cause without a word of the lexicon gets a random label"


def test_the_published_file_scored_by_its_own_answers(wiqa_raw: Path, tmp_path: Path) -> None:
    answers = {one.id: one.answer for one in read_questions(wiqa_raw)}
    file = save(tmp_path / "p.jsonl", [{"id": name, "answer": answer} for name, answer in answers.items()])
    scores = WIQA.score(file, wiqa_raw, WiqaScoreOptions()).scores
    assert scores["accuracy"] == 1
    assert scores["counts"]["gold"] == {"more": 880, "less": 868, "no_effect": 1_255}
    assert {name: row["questions"] for name, row in scores["by_type"].items()} == {
        "in-paragraph": 530,
        "out-of-paragraph": 1_218,
        "no effect": 1_255,
    }
    assert {name: row["questions"] for name, row in scores["by_hops"].items()} == {"1": 245, "2": 1_027, "3": 476}
    assert scores["baselines"]["majority"]["accuracy"] == pytest.approx(880 / 3_003)
    # Its questions were drawn from the paths, so that few are left that chain; those agree, and so do all opposites.
    transitive, disjunctive = scores["consistency"]["transitive"], scores["consistency"]["disjunctive"]
    assert (transitive["score"], transitive["count"]) == (1, 2)
    assert (disjunctive["score"], disjunctive["count"]) == (1, 384)


def test_the_graphs_own_answers_are_consistent(tmp_path: Path) -> None:
    found = graphs(tmp_path)
    file = save(tmp_path / "q.jsonl", questions_of(found, no_effect=3, seed=0))
    questions = read_questions(file)
    scores = scorer.consistency(questions, {question.id: question.answer for question in questions}, found)
    assert scores["transitive"]["score"] == scores["transitive"]["one_hop"]["score"] == 1
    assert scores["disjunctive"]["score"] == 1
    # Of graph 8, with one text a node: ZXY, ZXA and ZXD, ZYA and ZYD, XYA and XYD, UYA and UYD.
    eighth = [question for question in questions if question.graph == "8"]
    assert scorer.consistency(eighth, {one.id: one.answer for one in eighth})["transitive"]["count"] == 9


GOLD = {
    "q1": {"di": "RESULTS_IN", "dj": "RESULTS_IN", "de": "RESULTS_IN", "i": 0, "j": 1},
    "q2": {"di": "RESULTS_IN", "dj": "RESULTS_IN", "de": "RESULTS_IN", "i": 0, "j": 1},
    "q3": {"di": "NOT_RESULTS_IN", "dj": "NOT_RESULTS_IN", "de": "NOT_RESULTS_IN", "i": 0, "j": 1},
    "q6": {"di": None, "de": "NO_EFFECT", "i": None, "j": None},
}
SAID: list[dict[str, Any]] = [
    # The official evaluator's line, right in all four.
    {
        "orig_question": {"metadata": {"ques_id": "q1"}},
        "explanation": {"de": "RESULTS_IN", "di": "RESULTS_IN", "i": 0, "j": 1},
    },
    # The wrong answer by the right sentences; the direction is wrong.
    {"ques_id": "q2", "answer": "less", "explanation": {"di": "less", "i": 0, "j": 1}},
    # Another second sentence.
    {"ques_id": "q3", "answer": "less", "explanation": {"di": "less", "i": 0, "j": 2}},
    {"ques_id": "q4", "answer": "more"},
    {"ques_id": "q6", "answer": "no effect"},
]


def explained() -> list[dict[str, Any]]:
    names = [row["metadata"]["ques_id"] for row in QUESTIONS]
    return [
        row | ({"explanation": GOLD[name]} if name in GOLD else {}) for name, row in zip(names, QUESTIONS, strict=True)
    ]


def test_the_four_shares_overall_and_by_type(tmp_path: Path) -> None:
    paths = save(tmp_path / "p.jsonl", SAID), save(tmp_path / "gold.jsonl", explained())
    result = WIQA.score(*paths, WiqaScoreOptions(missing="leave_out"))
    found = result.scores["explanations"]
    assert [found[name] for name in ("EQDIR", "XDIR", "XSENTID", "YSENTID")] == [3 / 4, 3 / 4, 1, 3 / 4]
    assert (found["questions"], found["without_gold"], found["without_prediction"]) == (4, 1, 2)
    in_paragraph = found["by_type"]["in-paragraph"]
    assert [in_paragraph[name] for name in ("EQDIR", "XDIR", "XSENTID", "YSENTID")] == [0.5, 0.5, 1, 0.5]
    assert found["by_type"]["no effect"] == {"EQDIR": 1, "XDIR": 1, "XSENTID": 1, "YSENTID": 1, "questions": 1}
    assert "| all " in result.tables[-1].markdown()
    assert "1 questions without a gold one left out, 2 predictions without one" in result.tables[-1].caption


def test_nothing_is_said_of_explanations_where_one_side_has_none(tmp_path: Path) -> None:
    with_, without = save(tmp_path / "gold.jsonl", explained()), save(tmp_path / "plain.jsonl", QUESTIONS)
    answers = save(tmp_path / "a.jsonl", [{"ques_id": "q1", "answer": "more"}])
    options = WiqaScoreOptions(missing="leave_out")
    assert "explanations" not in WIQA.score(answers, with_, options).scores
    assert "explanations" not in WIQA.score(save(tmp_path / "p.jsonl", SAID), without, options).scores
