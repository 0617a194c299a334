"""WIQA's scores against hand-worked numbers, and the published test file's counts."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from d2e_sft.util.errors import UserError
from eval.systems.wiqa.baselines import baselines, by_polarity, polarity_of
from eval.systems.wiqa.consistency import RANDOM_DISJUNCTIVE, RANDOM_TRANSITIVE, is_disjunctive, is_transitive
from eval.systems.wiqa.labels import LABELS, label_of
from eval.systems.wiqa.options import WiqaScoreOptions
from eval.systems.wiqa.questions import read_questions
from eval.systems.wiqa.system import WIQA
from tests.eval.systems.wiqa.files import GRAPH, QUESTIONS, question, save_lines

RIGHT = {row["metadata"]["ques_id"]: row["question"]["answer_label"] for row in QUESTIONS}


def score(folder: Path, answers: dict[str, Any], questions: Any = QUESTIONS, **options: Any) -> dict[str, Any]:
    lines = [{"ques_id": name, "answer": answer} for name, answer in answers.items()]
    paths = save_lines(folder / "p.jsonl", lines), save_lines(folder / "gold.jsonl", questions)
    return WIQA.score(*paths, WiqaScoreOptions(**options)).scores


def test_accuracy_by_type_and_hops(tmp_path: Path) -> None:
    scores = score(tmp_path, {**RIGHT, "q1": "less", "q3": None, "q6": "more"})
    assert scores["accuracy"] == 3 / 6
    assert {name: row["accuracy"] for name, row in scores["by_type"].items()} == {
        "in-paragraph": 2 / 3,
        "out-of-paragraph": 1 / 2,
        "no effect": 0,
    }
    assert scores["by_hops"] == {
        "1": {"accuracy": 1 / 3, "questions": 3},
        "2": {"accuracy": 1, "questions": 2},
    }
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
    graphs = save_lines(tmp_path / "graphs.jsonl", [GRAPH])
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
    assert sum(is_transitive(*triple) for triple in triples) / len(triples) == RANDOM_TRANSITIVE
    pairs = list(itertools.product(LABELS, repeat=2))
    assert sum(is_disjunctive(*pair) for pair in pairs) / len(pairs) == RANDOM_DISJUNCTIVE


@pytest.mark.parametrize(
    ("text", "polarity"),
    [("more rain", 1), ("FEWER bees, more honey", -1), ("there is no rain", -1), ("dark clouds", None)],
)
def test_the_first_word_of_the_lexicon_decides(text: str, polarity: int | None) -> None:
    assert polarity_of(text) == polarity


def test_baselines_of_hand_worked_questions(tmp_path: Path) -> None:
    questions = read_questions(save_lines(tmp_path / "gold.jsonl", QUESTIONS))
    found = baselines(questions, seed=0)
    assert found["majority"]["accuracy"] == 4 / 6
    assert found["majority"]["by_type"]["no effect"] == 0
    by_id = {one.id: one for one in questions}
    assert [by_polarity(by_id[name], 0) for name in ("q2", "q3")] == ["more", "less"]
    drawn = {by_polarity(by_id["q6"], seed) for seed in range(40)}
    assert drawn == set(LABELS), "a cause without a word of the lexicon gets a random label"


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ({"id": "q1", "answer": "Less"}, "less"),
        ({"ques_id": "q1", "answer": "no effect"}, "no_effect"),
        ({"ques_id": "q1", "answer": "A"}, "more"),
        ({"explanation": {"de": "NOT_RESULTS_IN"}, "orig_question": {"metadata": {"ques_id": "q1"}}}, "less"),
        ({"metadata": {"ques_id": "q1"}, "answer_label": "no_effect"}, "no_effect"),
    ],
)
def test_lines_of_ours_and_of_the_official_evaluator_are_read(tmp_path: Path, line: Any, answer: str) -> None:
    paths = save_lines(tmp_path / "p.jsonl", [line]), save_lines(tmp_path / "gold.jsonl", QUESTIONS)
    scores = WIQA.score(*paths, WiqaScoreOptions(missing="leave_out")).scores
    assert scores["counts"]["predicted"][answer] == 1
    assert scores["missing"] == 5


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            [{"ques_id": "q1", "answer": "perhaps"}],
            "line 1, answer: got 'perhaps'; expected one of more, less, no_effect",
        ),
        ([{"ques_id": "q0", "answer": "more"}], "line 1: question 'q0' is not in the gold file"),
        ([{"answer": "more"}], "line 1: got the fields answer; expected ques_id"),
        ([{"ques_id": "q1"}], "line 1: got the fields ques_id; expected answer"),
        ([{"ques_id": "q1", "answer": "more"}] * 2, "line 2: question 'q1' is answered twice"),
        ([{"ques_id": "q1", "answer": "more"}], r"lacks an answer to 'q2' \(5 of 6 are missing\)"),
        ([], r"lacks an answer to 'q1' \(6 of 6"),
        ([[1]], r"line 1: got \[1\]; expected a JSON object"),
    ],
)
def test_a_damaged_file_of_answers_is_named_with_its_line(tmp_path: Path, lines: Any, message: str) -> None:
    paths = save_lines(tmp_path / "p.jsonl", lines), save_lines(tmp_path / "gold.jsonl", QUESTIONS)
    with pytest.raises(UserError, match=message):
        WIQA.score(*paths, WiqaScoreOptions())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"path_len": "2"}, "line 1, metadata.path_len: got '2'"),
        ({"question_type": "OTHER"}, "line 1, metadata.question_type: got 'OTHER'"),
        ({"graph_id": 7}, "line 1, metadata: graph_id: got 7"),
    ],
)
def test_a_damaged_question_is_named_with_its_line(tmp_path: Path, change: Any, message: str) -> None:
    row = question("q1", "a", "b", "more", "INPARA_EFFECT", 2, **change)
    with pytest.raises(UserError, match=message):
        read_questions(save_lines(tmp_path / "gold.jsonl", [row]))


def test_labels_have_the_official_names() -> None:
    assert {label_of(name) for name in ("RESULTS_IN", "correct effect", "+", "MORE")} == {"more"}
    assert {label_of(name) for name in ("opposite", "NOT_RESULTS_IN", "-", "b")} == {"less"}
    assert {label_of(name) for name in ("NO_EFFECT", "no effect", "none")} == {"no_effect"}
    assert label_of("moreover") is None


def test_the_published_file_has_its_counts(official: Path) -> None:
    questions = read_questions(official)
    assert len(questions) == 3_003
    assert len({one.paragraph for one in questions}) == 41
    assert len({one.graph for one in questions}) == 230
    assert all(one.cause and one.effect for one in questions)


def test_the_published_file_scored_by_its_own_answers(official: Path, tmp_path: Path) -> None:
    answers = {one.id: one.answer for one in read_questions(official)}
    file = save_lines(tmp_path / "p.jsonl", [{"id": name, "answer": answer} for name, answer in answers.items()])
    scores = WIQA.score(file, official, WiqaScoreOptions()).scores
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
