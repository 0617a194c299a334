"""Verbs of the evaluation: score, predict, tag and others, as a user types them."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from d2e_sft.data.built import taggers
from d2e_sft.data.sample import EventSample, read_samples, write_samples
from eval.systems.run import score_files
from tests.chat_samples import chat_sample
from tests.command import call, output_of, refusal_of
from tests.data_builders.own_rows import write
from tests.eval.compare.rows import accuracy, save_result
from tests.eval.compare.test_paper import balanced
from tests.eval.paper_runs import printed, run
from tests.eval.systems.boxes_rows import ROWS
from tests.eval.systems.cases import CASES, save_gold
from tests.eval.systems.files import save
from tests.eval.systems.wiqa_files import GRAPH, OTHER, QUESTIONS
from tests.factories import save_bench, scores_of
from tests.judge_server import JudgeServer
from tests.tiny import make_sample, make_samples, save_tiny_model

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


@pytest.mark.parametrize("arguments", [name for name in documented() if "pddl" not in name])
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
    assert "B against A: accuracy +50.0" in printed
    assert r"B & \textbf{83.3}" in (tmp_path / "t.tex").read_text()
    assert (tmp_path / "p.svg").read_text().count("accuracy") == 4
    content = json.loads((tmp_path / "s.json").read_text())
    assert content["scores"]["A"]["accuracy"] == pytest.approx(2 / 6)
    assert content["comparison"]["scores"][1]["change"] == pytest.approx(0.5)
    assert output_of("score", "wiqa", *files, "--gold", gold, "--latex", "-").startswith("% \\usepackage{booktabs")


def test_what_is_scored_can_be_compared_reported_and_laid_out(tmp_path: Path) -> None:
    gold = save(tmp_path / "gold.jsonl", QUESTIONS)
    for name, right in (("one", 2), ("two", 5)):
        answers = save_answers(tmp_path / f"{name}.csv", right)
        output_of("score", "wiqa", answers, "--gold", gold, "--out", tmp_path / name)
        assert (tmp_path / name / "eval" / "wiqa" / f"{name}.csv").is_file()
    runs = (tmp_path / "one", tmp_path / "two")
    assert "two against one: accuracy +50.0" in output_of("compare", *runs)
    assert "Δ to two" in output_of("compare", *runs, "--reference", "two", "--wide", "--json", tmp_path / "c.json")
    assert json.loads((tmp_path / "c.json").read_text())["labels"] == ["two", "one"]


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
    assert "d2e against sft: accuracy +50.0" in printed(*runs, "--format", "text")
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


ROWS_TAG = "question,answer,context\n" + "".join(
    f"What rose on day {n}?,the river,Rain fell on day {n}. Then the river rose.\n" for n in range(12)
)
SPEC = "train: mine.csv\ntest: 0.25\nformat: qa\nrelation: none\nlicence: MIT\n"


def tag(data: Path, model: Path, out: Path, *flags: str) -> str:
    given = ("--model", model, "--out", out, "--max-new-tokens", 6, "--threshold", 0, *flags)
    return output_of("data", "tag", data, *given)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build of own rows, two models, and the rows tagged by the first."""
    folder = tmp_path_factory.mktemp("tags")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("D2E_CACHE", str(folder / "cache"))
        for seed, name in enumerate(("model", "other")):
            save_tiny_model(folder / name, seed=seed)
        spec = write(folder, mine_csv=ROWS_TAG, mine_yaml=SPEC)
        output_of("data", "build", "--datasets", spec, "--out", folder / "mine")
        tag(folder / "mine", folder / "model", folder / "tagged")
    return folder


def rows(folder: Path) -> list[EventSample]:
    return [row for split in ("train", "test") for row in read_samples(folder / f"{split}.parquet")]


def test_rows_get_three_fields_and_stay_otherwise_as_they_are(world: Path) -> None:
    before, after = rows(world / "mine"), rows(world / "tagged")
    assert all(row.subset in ("aligned", "conflict", "unknown") for row in after)
    bare = [
        row.model_copy(update={"subset": None, "habit": [], "meta": {k: v for k, v in row.meta.items() if k != "tag"}})
        for row in after
    ]
    assert bare == before
    assert taggers(after) == {str(world / "model"): 12}
    made = after[0].meta["tag"]
    assert (made["confidence"], made["threshold"]) == ("probability", 0)
    assert all((row.meta["tag"]["probability"] is None) == (not row.habit) for row in after)


def test_manifest_and_card_say_who_made_the_tags(world: Path) -> None:
    manifest = json.loads((world / "tagged" / "manifest.json").read_text())
    assert manifest["tags"]["model"] == str(world / "model")
    assert manifest["tags"]["identity"].startswith("sha256:")
    splits = manifest["datasets"]["mine"]["splits"]
    assert [sum(splits[split]["rows_by_subset"].values()) for split in ("train", "test")] == [9, 3]
    assert f"d2e data tag OUT --model {world / 'model'}" in (world / "tagged" / "README.md").read_text()


def test_the_model_of_the_tags_is_no_news_and_another_is_told_in_one_line(world: Path) -> None:
    for name in ("model", "other"):
        called = call(
            "eval", world / name, "--bench", world / "tagged", "--out", world / f"run-{name}", "--max-new-tokens", 6
        )
        assert called.status == 0, called.err
        assert ("tagged with the habit of" in called.err) == (name == "other")
        assert scores_of(world / f"run-{name}", "tagged")["tagged_by"] == [str(world / "model")]


def test_a_file_of_rows_is_tagged_into_a_file(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("D2E_CACHE", str(tmp_path / "cache"))
    for number, flags in ((3, ()), (2, ("--overwrite",))):
        write_samples(make_samples(number), tmp_path / "rows.jsonl")
        tag(tmp_path / "rows.jsonl", world / "model", tmp_path / "out.parquet", *flags)
        assert taggers(read_samples(tmp_path / "out.parquet")) == {str(world / "model"): number}


def test_tagged_rows_are_own_data_that_can_be_swapped(world: Path, tmp_path: Path) -> None:
    """Years in place of the river; the habit is not swapped in, and the tag still names the model."""
    rows = [
        make_sample(n, relation="none", question=f"When did mill {n} burn?", context=f"In {1900 + n} it burnt.")
        for n in range(8)
    ]
    meta = {"tag": {"model": "m", "probability": 0.9}}
    tags = [("conflict", ["1066"]), ("unknown", ["1066"]), ("aligned", None), ("unknown", [])] * 2
    for n, (subset, habit) in enumerate(tags):
        year = str(1900 + n)
        changes = {"subset": subset, "habit": [year] if habit is None else habit, "answers": [year], "meta": meta}
        rows[n] = rows[n].model_copy(update={**changes, "refined_context": None})
    write_samples(rows, tmp_path / "rows.parquet")
    columns = "columns: {answer: answers, subset: subset, habit: habit}"
    spec = write(tmp_path, mine_yaml=f"train: rows.parquet\nformat: qa\nrelation: none\n{columns}\n")
    output_of("data", "build", "--datasets", spec, "--out", tmp_path / "swapped", "--swap", 1)
    swapped = read_samples(tmp_path / "swapped" / "train.parquet")
    assert all("swapped" in row.meta for row in swapped)
    assert [row.subset for row in swapped] == ["conflict", "unknown", "conflict", "unknown"] * 2
    assert [row.meta.get("tag", {}).get("model") for row in swapped] == ["m"] * 8


def test_rows_are_tagged_by_their_own_questions_without_a_model(world: Path, tmp_path: Path) -> None:
    answers = ["the fog" if n == 5 else "the river" for n in range(20)]
    rows = [make_sample(n, context=f"Day {n}.", question="What rose?", answers=[answers[n]]) for n in range(20)]
    write_samples(rows, tmp_path / "rows.jsonl")
    output_of("data", "tag", tmp_path / "rows.jsonl", "--by", "questions", "--out", tmp_path / "out.jsonl")
    tagged = read_samples(tmp_path / "out.jsonl")
    assert [row.subset for row in tagged] == ["conflict" if n == 5 else "aligned" for n in range(20)]
    assert (tagged[5].habit, tagged[4].habit) == (["the river"], ["the river"])
    assert tagged[5].meta["tag"] == {"by": "questions", "threshold": 0.5, "probability": 1.0}
    assert taggers(tagged) == {}, "the habit of the rows is no model's"
    output_of("data", "tag", world / "mine", "--by", "questions", "--out", tmp_path / "tagged")
    manifest = json.loads((tmp_path / "tagged" / "manifest.json").read_text())
    assert manifest["tags"] == {"by": "questions", "threshold": 0.5}
    assert "d2e data tag OUT --by questions --threshold 0.5" in (tmp_path / "tagged" / "README.md").read_text()
    refused = call("data", "tag", tmp_path / "rows.jsonl", "--by", "questions", "--model", "m", "--out", "new.jsonl")
    assert (refused.status, "--by questions with --model: no model is asked" in refused.err) == (1, True)
    missing = call("data", "tag", tmp_path / "rows.jsonl", "--out", "new.jsonl")
    assert (missing.status, "Missing option '--model'" in missing.err) == (2, True)
