"""`d2e score`: where the scores go, and files that are not there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from eval.systems.run import score_files
from tests.command import output_of
from tests.eval.systems.boxes_rows import ROWS
from tests.eval.systems.cases import CASES, save_gold
from tests.eval.systems.files import save
from tests.eval.systems.wiqa_files import QUESTIONS
from tests.factories import save_bench
from tests.tiny import make_sample

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
