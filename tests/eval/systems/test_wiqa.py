"""WIQA: graphs and their questions, replies, scores and explanations by hand, and the trained baselines."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.util.errors import UserError
from eval.systems.benchmark import BenchmarkCall
from eval.systems.wiqa import benchmark as wiqa
from eval.systems.wiqa.benchmark import WIQA, WiqaOptions, WiqaScoreOptions
from eval.systems.wiqa.gold import LABELS
from eval.systems.wiqa.graphs import Alignment, explain, questions_of
from tests.command import call, output_of, refusal_of
from tests.data_builders.reading import rows_of_split
from tests.eval.systems.files import save
from tests.eval.systems.wiqa_files import GRAPH, QUESTIONS, graphs, question, read_questions, score, tiny_bert
from tests.factories import ScriptedAsker

RIGHT = {row["metadata"]["ques_id"]: row["question"]["answer_label"] for row in QUESTIONS}


# Every path of up to three edges and its answer, worked out by hand from the template with Y → A positive.
ANSWERS = {
    "VX": -1, "ZX": 1, "XW": -1, "XY": 1, "UY": -1, "WA": -1, "WD": 1, "YA": 1, "YD": -1,
    "VXW": 1, "VXY": -1, "ZXW": -1, "ZXY": 1, "XWA": 1, "XWD": -1, "XYA": 1, "XYD": -1, "UYA": -1, "UYD": 1,
    "VXWA": -1, "VXWD": 1, "VXYA": -1, "VXYD": 1, "ZXWA": 1, "ZXWD": -1, "ZXYA": 1, "ZXYD": -1,
}  # fmt: skip


# Where Y hinders the outcome its edges change signs; graph 8 has no V and no W, so no path through them is there.
HINDERED = {
    "ZX": 1, "XY": 1, "UY": -1, "YA": -1, "YD": 1, "ZXY": 1, "XYA": -1, "XYD": 1, "UYA": 1, "UYD": -1,
    "ZXYA": -1, "ZXYD": 1,
}  # fmt: skip


def test_paths_have_one_to_three_edges_and_answers_are_products(tmp_path: Path) -> None:
    for name, answers in (("7", ANSWERS), ("8", HINDERED)):
        graph = graphs(tmp_path)[name]
        assert {"".join(path): graph.polarity(path) for path in graph.paths()} == answers
    graph = graphs(tmp_path, {**GRAPH, "Y_affects_outcome": "-"})["7"]
    assert {path[-1] for path in graph.paths()} == {"X", "Y", "W"}, "it has no effect on the outcome"


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
    by_ends = {question.changes: question for question in questions}
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
    for asked in read_questions(save(tmp_path / "q.jsonl", rows)):
        assert (asked.type, asked.hops) == ("OUTOFPARA_DISTRACTOR", 0)
        own, other = (found[asked.graph], found["8" if asked.graph == "7" else "7"])
        assert other.node_of(asked.changes[0]) in ("Z", "V", "U")
        assert own.node_of(asked.changes[0]) is None
        assert own.node_of(asked.changes[1]) in ("X", "Y", "W", "A", "D")
    again = [row for row in questions_of(found, no_effect=4, seed=0) if row["metadata"]["path_len"] == 0]
    assert again == rows
    assert [row for row in questions_of(found, no_effect=4, seed=1) if row["metadata"]["path_len"] == 0] != rows


@pytest.mark.parametrize(
    ("path", "x", "d_x", "directions"),
    [
        # d_i = r_pX · d_X, d_j = d_i; d_e = the answer.
        ("VXYA", 0, "more", ("NOT_RESULTS_IN", "NOT_RESULTS_IN")),
        ("VXYA", 0, "less", ("RESULTS_IN", "NOT_RESULTS_IN")),
        ("ZXWD", 0, "more", ("RESULTS_IN", "NOT_RESULTS_IN")),
        ("XY", 0, "less", ("NOT_RESULTS_IN", "RESULTS_IN")),
        ("XYD", 0, "more", ("RESULTS_IN", "NOT_RESULTS_IN")),
        # Paths without both sentences, in order, have no explanation.
        ("UY", 0, "more", None),
        ("ZX", 0, "more", None),
        ("XY", 2, "more", None),
    ],
)
def test_explanation_chains(tmp_path: Path, path: str, x: int, d_x: Any, directions: tuple[str, str] | None) -> None:
    found = explain(graphs(tmp_path)["7"], tuple(path), Alignment(x=x, y=1, d_x=d_x))
    d_i, d_e = directions or ("", "")
    assert found == (directions and {"di": d_i, "dj": d_i, "de": d_e, "i": 0, "j": 1})


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
    paths = save(tmp_path / "p.jsonl", [line]), save(tmp_path / "gold.jsonl", QUESTIONS)
    scores = WIQA.score(*paths, WiqaScoreOptions(missing="leave_out")).scores
    assert scores["counts"]["predicted"][answer] == 1
    assert scores["missing"] == 5


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
    assert sum(wiqa.is_transitive(*triple) for triple in triples) / len(triples) == 1 / 3
    pairs = list(itertools.product(LABELS, repeat=2))
    assert sum(wiqa.is_disjunctive(*pair) for pair in pairs) / len(pairs) == 2 / 9


def test_baselines_of_hand_worked_questions(tmp_path: Path) -> None:
    questions = read_questions(save(tmp_path / "gold.jsonl", QUESTIONS))
    found = wiqa.baselines({"all": questions, **WIQA.groups(questions)}, seed=0)
    assert found["majority"]["accuracy"] == 4 / 6
    assert found["majority"]["by_type"]["no effect"] == 0
    by_id = {one.id: one for one in questions}
    assert [wiqa.by_polarity(by_id[name], 0) for name in ("q2", "q3")] == ["more", "less"]
    drawn = {wiqa.by_polarity(by_id["q6"], seed) for seed in range(40)}
    assert drawn == {"more", "less"}, "a cause without a word of the lexicon gets one of two labels"


def test_accuracy_by_topic_is_that_of_the_list_of_paragraphs(tmp_path: Path) -> None:
    gold = save(
        tmp_path / "gold.jsonl", [*QUESTIONS[:5], question("q9", "a", "b", "more", "INPARA_EFFECT", 2, para_id="4")]
    )
    said = save(
        tmp_path / "p.jsonl", [{"id": name, "answer": "more"} for name in ("q1", "q2", "q3", "q4", "q5", "q9")]
    )
    topics = tmp_path / "topics.tsv"
    topics.write_text("para_id\tprompt\ttopic\tpartition\npropara_31\tHow?\tponds\ttest\n", encoding="utf-8")
    result = WIQA.score(said, gold, WiqaScoreOptions(topics=topics))
    assert result.scores["by_topic"] == {
        "ponds": {"accuracy": 4 / 5, "questions": 5}, "in no topic": {"accuracy": 1.0, "questions": 1}
    }  # fmt: skip
    assert "By topic" in result.text
    topics.write_text("para_id\ttopic\n77\train\n", encoding="utf-8")
    with pytest.raises(UserError, match="none of the questions' paragraphs, such as '31'"):
        WIQA.score(said, gold, WiqaScoreOptions(topics=topics))


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
    file = save(tmp_path / "q.jsonl", questions_of(found, no_effect=12, seed=0))
    questions = read_questions(file)
    scores = wiqa.consistency(questions, {question.id: question.answer for question in questions}, found)
    assert scores["transitive"]["score"] == scores["transitive"]["one_hop"]["score"] == 1
    assert scores["disjunctive"]["score"] == 1
    # Of graph 8, with one text a node: ZXY, ZXA and ZXD, ZYA and ZYD, XYA and XYD, UYA and UYD; none without effect.
    eighth = [question for question in questions if question.graph == "8"]
    assert wiqa.consistency(eighth, {one.id: one.answer for one in eighth})["transitive"]["count"] == 9


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


@pytest.mark.parametrize("published", [False, True])
def test_a_trained_model_is_asked_as_trained(published: bool, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    raw = request.getfixturevalue("published_raw") if published else tmp_path
    if not published:
        save(tmp_path / "wiqa" / "test.jsonl", QUESTIONS)
    rows, prompts = rows_of_split(raw, "wiqa", "test"), load_prompt_set("default")
    gold = WIQA.read_gold(raw / "wiqa" / "test.jsonl", None)
    answers = {one.id: prompts.response(row) for one, row in zip(gold, rows, strict=True)}
    asker: Any = ScriptedAsker(lambda name, chat: answers[chat.id])
    options = WiqaOptions(prompt="trained")
    found = WIQA.ask(gold, BenchmarkCall(raw, options, None, 0), asker)
    assert found.labels == {one.id: one.answer for one in gold}
    for chat, row in zip(asker.passes[0][1], rows, strict=True):
        assert (chat.messages, chat.imagined) == (prompts.messages(row, "original"), prompts.messages(row, "imagined"))


def asked(name: str, step: str, answer: str) -> dict[str, Any]:
    """A question about ice that only the paragraph's step decides."""
    row = question(name, "rain falls", "more ice", answer, "INPARA_EFFECT", 2)
    return {**row, "question": {**row["question"], "para_steps": [step]}}


BY_STEP = [asked(f"q{n}", step, answer) for n, (step, answer) in enumerate([("warm", "less"), ("cold", "more")] * 8)]
FAST = ("--epochs", 30, "--batch-size", 8, "--learning-rate", 1e-3)


def scores_in(run: Path, variant: str = "") -> dict[str, Any]:
    return json.loads((run / "eval" / f"wiqa{variant}" / "scores.json").read_text())


def test_an_encoder_learns_what_the_paragraph_says_and_cannot_without_it(tmp_path: Path) -> None:
    bert, file = tiny_bert(tmp_path / "bert"), save(tmp_path / "train.jsonl", BY_STEP)
    command = ("wiqa-baseline", bert, "--train", file, "--data", file, *FAST)
    printed = output_of(*command, "--out", tmp_path / "with")
    assert "WIQA, train.jsonl" in printed
    assert scores_in(tmp_path / "with")["accuracy"] == 1
    output_of(*command, "--out", tmp_path / "without", "--without-paragraph")
    assert scores_in(tmp_path / "without", "-paragraph=no")["accuracy"] == 0.5
    again = ("wiqa-baseline", tmp_path / "with", "--data", file, "--out", tmp_path / "again")
    output_of(*again)
    assert scores_in(tmp_path / "again")["accuracy"] == 1
    assert "was trained with the paragraph" in refusal_of(*again, "--without-paragraph")
    rescored = output_of("score", "wiqa", tmp_path / "with", "--gold", file, "--json", "-")
    assert json.loads(rescored)["accuracy"] == 1
    assert "with" in output_of("compare", tmp_path / "with", tmp_path / "again", "--bench", "wiqa")


def test_adaboost_reads_the_words_of_cause_and_effect_apart(tmp_path: Path) -> None:
    # The two questions have the same words, so that only their places tell.
    rows = [
        question(*words, "INPARA_EFFECT", 2) for words in (("1", "hot", "cold", "less"), ("2", "cold", "hot", "more"))
    ]
    file = save(tmp_path / "train.jsonl", rows)
    command = ("wiqa-baseline", "adaboost", "--train", file, "--data", file, "--out", tmp_path / "run")
    assert "warning: 2 of the 2 questions of" in call(*command).err  # they were trained on
    assert scores_in(tmp_path / "run")["accuracy"] == 1
    assert "holds results already" in refusal_of(*command)
