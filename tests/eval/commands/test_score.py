"""Verbs of the evaluation: score, predict and others, as a user types them."""

import csv
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from d2e_sft.data.sample import write_samples
from eval.systems.run import score_files
from tests.command import call, output_of, refusal_of
from tests.eval.compare.rows import accuracy, save_result
from tests.eval.compare.test_paper import balanced
from tests.eval.paper_runs import printed, run
from tests.eval.systems.cases import CASES, save_gold
from tests.eval.systems.files import ROWS, save
from tests.eval.systems.wiqa_files import GRAPH, OTHER, QUESTIONS
from tests.factories import save_bench
from tests.judge_server import JudgeServer
from tests.tiny import chat_sample, make_sample, save_tiny_model

TEXTS = ["the cup", "the hat and the pen", "nothing", "nothing", "the pen", "nothing"]  # the last one is wrong


def test_scores_are_printed_as_tables_or_json_and_written(tmp_path: Path) -> None:
    gold = save(tmp_path / "test.jsonl", ROWS)
    answers = save(tmp_path / "p.jsonl", [{"prediction": text} for text in TEXTS])
    call = ("score", "boxes", "--predictions", answers, "--gold", gold)
    printed = output_of(*call, "--json", tmp_path / "scores.json")
    assert "whole states" in printed
    assert f"scores: {tmp_path / 'scores.json'}" in printed
    scores = json.loads(output_of(*call, "--json", "-"))
    assert scores == json.loads((tmp_path / "scores.json").read_text())
    assert scores["questions"] == 6
    assert scores["accuracy"]["mean"] == pytest.approx(5 / 6)
    # Folders stand for the files in them.
    save(tmp_path / "run" / "eval" / "boxes" / "answers_by_box.jsonl", [{"prediction": text} for text in TEXTS])
    assert scores == json.loads(output_of("score", "boxes", tmp_path / "run", "--gold", tmp_path, "--json", "-"))


def documented() -> dict[str, str]:
    """The example files of docs/reference/systems.md by the arguments of `d2e score`."""
    text = (Path(__file__).parents[3] / "docs" / "reference" / "systems.md").read_text(encoding="utf-8")
    found = re.findall(r"^`d2e score ([^`]+)`:.*?\n\n```json\n(.*?)```", text, flags=re.MULTILINE | re.DOTALL)
    return dict(found)


@pytest.mark.parametrize("arguments", documented())
def test_the_documented_examples_are_scored_and_their_measures_are_the_scores(tmp_path: Path, arguments: str) -> None:
    text = documented()[arguments]
    assert len(text.splitlines()) == 3
    file = save(tmp_path / "predictions.json", text)
    system, *given = (word for word in arguments.split() if word != "--set")
    rows = [make_sample(n, dataset="keys", split="test", answers=["garage"]) for n in range(3)]
    gold = save_bench(tmp_path, rows) if system == "rows" else save_gold(tmp_path, " ".join((system, *given)))
    more = ["missing=leave_out"] if system not in ("rows", "boxes", "openpi2") else []
    [scored] = score_files(system, [file], gold, [*given, *more])
    numbers = (value.get("mean") if isinstance(value, dict) else value for value in scored.result.scores.values())
    if system != "rows":
        assert scored.result.measures[0].interval.mean == pytest.approx(
            next(one for one in numbers if one is not None)
        )


def test_every_scorer_has_a_documented_example() -> None:
    scorers = ["rows", *(name.replace(" ", " --set ") for name in CASES)]
    assert sorted(documented()) == sorted(scorers)


def save_answers(file: Path, right: int) -> Path:
    """Answers to WIQA's questions, of which so many are right."""
    wrong = {"more": "less", "less": "more", "no_effect": "more"}
    gold = [(row["metadata"]["ques_id"], row["question"]["answer_label"]) for row in QUESTIONS]
    lines = [(name, label if place < right else wrong[label]) for place, (name, label) in enumerate(gold)]
    file.write_text("ques_id,answer\n" + "".join(f"{name},{label}\n" for name, label in lines))
    return file


def test_several_files_are_compared_with_names_a_plot_and_latex(tmp_path: Path) -> None:
    gold = save(tmp_path / "gold.jsonl", QUESTIONS)
    files = [save_answers(tmp_path / f"{name}.csv", right) for name, right in (("one", 2), ("two", 5))]
    more = ("--plot", tmp_path / "p.svg", "--latex", tmp_path / "t.tex", "--json", tmp_path / "s.json")
    printed = output_of("score", "wiqa", *files, "--gold", gold, "--names", "A,B", *more)
    assert "B against A is not decided: accuracy +50.0 points" in printed
    assert r"B & \textbf{83.3}" in (tmp_path / "t.tex").read_text()
    assert (tmp_path / "p.svg").read_text().count("accuracy") == 4
    content = json.loads((tmp_path / "s.json").read_text())
    assert content["scores"]["A"]["accuracy"] == pytest.approx(2 / 6)
    assert content["comparison"]["scores"][1]["change"] == pytest.approx(0.5)
    assert output_of("score", "wiqa", *files, "--gold", gold, "--latex", "-").startswith("% \\usepackage{booktabs")


def test_a_mapping_names_the_columns_and_the_counts_are_told(tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "model", seed=3)
    (tmp_path / "mine.yaml").write_text(
        "train: not-here.csv\nformat: qa\ncolumns: {context: passage, question: ask, answer: label, id: ticket}\n"
    )
    (tmp_path / "new.csv").write_text(
        "ticket,passage,ask,note\nT-9,It rained.,Why?,x\nT-3,,Why?,x\nT-5,Sun.,When?,y\n"
    )
    line = ["predict", model, tmp_path / "new.csv", "--mapping", tmp_path / "mine.yaml", "--max-new-tokens", 4]
    error = refusal_of(*line, "--out", tmp_path / "a.csv")
    assert "new.csv, line 3: passage: got ''; expected text that is not empty" in error
    said = output_of(*line, "--out", tmp_path / "a.csv", "--skip-bad")
    assert f"{tmp_path / 'a.csv'}: 2 answers" in said
    assert f"bad rows skipped, kept in {tmp_path / 'a.csv.bad.jsonl'}: 1" in said
    with (tmp_path / "a.csv").open() as source:
        assert [row["id"] for row in csv.DictReader(source)] == ["T-9", "T-5"]


def test_a_system_has_a_table_of_its_measures(tmp_path: Path) -> None:
    for name, right in (("sft", [1, 0, 0, 0]), ("d2e", [1, 1, 1, 0])):
        save_result(tmp_path / name, accuracy(right))
    runs = (tmp_path / "sft", tmp_path / "d2e")
    assert "| accuracy (4) | d2e " in printed(*runs, "--format", "markdown")
    assert balanced(printed(*runs, "--format", "latex"))
    printed(*runs, "--out", tmp_path / "t.json")
    assert json.loads((tmp_path / "t.json").read_text())["labels"] == ["sft", "d2e"]
    assert "d2e against sft is not decided: accuracy +50.0 points" in printed(*runs, "--format", "text")
    folder = save_result(run(tmp_path / "run"), accuracy([1, 0]))  # rows are shown unless the system is named
    assert "PIPER" not in printed(folder, "--bench", "wiqa")
    assert "accuracy" in printed(folder, "--bench", "wiqa")
    assert "accuracy (2)" not in printed(folder)


def test_the_command_writes_questions_with_explanations(tmp_path: Path) -> None:
    file = save(tmp_path / "graphs.jsonl", [GRAPH, OTHER])
    (tmp_path / "a.json").write_text(json.dumps({"7": {"x": 0, "y": 1, "d_x": "more"}}))
    out = tmp_path / "new" / "questions.jsonl"
    command = ("data", "wiqa-questions", "--graphs", file, "--out", out, "--no-effect", 2)
    printed = output_of(*command, "--alignments", tmp_path / "a.json")
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    explained = [row for row in rows if "explanation" in row]
    assert f"{len(rows)} questions of 2 graphs" in printed
    assert explained
    assert {row["metadata"]["graph_id"] for row in explained} == {"7"}
    for row in explained:
        answer = {"RESULTS_IN": "more", "NOT_RESULTS_IN": "less"}[row["explanation"]["de"]]
        assert answer == row["question"]["answer_label"]
    plain = {row["metadata"]["ques_id"] for row in rows}
    balanced = output_of(*command, "--no-effect", 4, "--balanced")
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    counts = Counter((row["metadata"]["question_type"], row["question"]["answer_label"]) for row in rows)
    each = counts["INPARA_EFFECT", "more"]
    assert each > 0
    assert counts == {
        **{(kind, answer): each for kind in ("INPARA_EFFECT", "EXOGENOUS_EFFECT") for answer in ("more", "less")},
        ("OUTOFPARA_DISTRACTOR", "no_effect"): 2 * each,
    }
    assert re.search(rf"in-paragraph +{each} +{each} +0\n", balanced)
    assert len(plain) > len(rows)
    assert "--balanced: some type or answer has no question" in refusal_of(*command, "--no-effect", 0, "--balanced")
    error = refusal_of("data", "wiqa-questions", "--graphs", tmp_path / "none.jsonl", "--out", out)
    assert "none.jsonl: cannot be read" in error


GIVEN = ("--judge", "openai", "--judge-model", "m")


def test_finished_results_are_judged_without_decoding(tmp_path: Path, world: Path, server: JudgeServer) -> None:
    rows = [chat_sample(id=f"c{n}", split="test", answers=["The receipt."]) for n in range(3)]
    write_samples(rows, tmp_path / "bench" / "test.jsonl")
    common = ("--bench", tmp_path / "bench" / "test.jsonl", "--out", tmp_path / "run", "--max-new-tokens", 4)
    server.reply = lambda user: "It says so.\nVerdict: unsupported, correct"
    output_of("eval", world / "model", *common)
    printed = call("eval", world / "model", *common, *GIVEN, "--judge-url", server.url)
    assert "decoded before, and only scored again" in printed.err
    assert "chats (3) run 0.0 [0.0, 70.8] 100.0 [29.2, 100.0]" in " ".join(printed.out.split())
    (file,) = (tmp_path / "run" / "eval").glob("*/judged_answers.json")
    assert str(file) in printed.out
    judged = json.loads(file.read_text())
    assert judged["judge"] == {"backend": "openai", "model": "m"}
    assert [one["verdict"]["reason"] for one in judged["answers"]] == ["It says so."] * 3


def test_rows_in_a_folder_called_like_a_system_are_refused(tmp_path: Path, world: Path) -> None:
    write_samples([chat_sample(id="c", split="test")], tmp_path / "wiqa" / "test.jsonl")
    message = refusal_of("eval", world / "model", "--bench", tmp_path / "wiqa", "--out", tmp_path / "run")
    assert "rows in a folder called wiqa, whose results would share" in " ".join(message.split())
    assert not (tmp_path / "run").exists()
