"""Tables by subset: a row a run, within a terminal, a verdict a run at the end."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from eval.compare.compare import compare_runs
from eval.compare.runs import load_runs
from eval.compare.subset_comparison import compare_subsets
from eval.compare.subset_tables import subset_comparison_tables, subset_tables
from eval.score.predictions import Prediction
from eval.score.scores import score_predictions
from tests.command import d2e, output_of, refusal_of
from tests.eval.compare.test_subset_comparison import habit_rows
from tests.factories import make_run, prediction, story


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    rights = {"sft": (34, 16), "d2e": (40, 0), "teacher": (39, 30)}
    return [make_run(tmp_path / name, habit_rows(*right)) for name, right in rights.items()]


def test_a_row_a_run_with_both_accuracies_and_the_gap(runs: list[Path]) -> None:
    comparison = compare_subsets(load_runs(runs))
    scores, answers, changes = (table.rows()[-1] for table in subset_comparison_tables(comparison))
    assert [cell.split()[0] for cell in scores[1:]] == ["97.5", "75.0", "22.5"]
    assert [cell.split()[0] for cell in answers[1:]] == ["25.0", "25.0", "75.0", "25.0", "0.0", "0.0"]
    assert [changes[place].split()[0] for place in (1, 3, 4)] == ["+12.5", "+35.0", "<0.001"]
    output = output_of("compare", *runs)
    assert all(cell in output for cell in (*scores, *answers, *changes))
    assert "habit, temporal, qa (80)" not in output, "tables by group are shown with --groups"
    assert "habit, temporal, qa (80)" in output_of("compare", *runs, "--groups")
    assert "habit, temporal, qa (80)" in output_of("compare", *runs, "--wide")


def test_the_output_ends_with_a_verdict_a_run(runs: list[Path]) -> None:
    *_, first, second = output_of("compare", *runs).splitlines()
    assert first.startswith("d2e against sft: conflict -40.0 [-")
    assert first.endswith(": uses the context less")
    assert second.startswith("teacher against sft: conflict +35.0 [+")
    assert second.endswith(": uses the context more")
    output = output_of("compare", *runs, "--reference", "d2e")
    assert "sft against d2e: conflict +40.0" in output
    assert "teacher against d2e: conflict +75.0" in output


def test_several_datasets_have_a_block_each_and_the_verdict_is_on_their_average(tmp_path: Path) -> None:
    others = [story(500 + n, "irrelevant", "garage", habit="garage") for n in range(20)]
    for name, right in (("sft", (38, 20)), ("sft-of-a-longer-name", (40, 12))):
        rows = [*habit_rows(*right), *habit_rows(*right, dataset="matres_narrative"), *others, prediction(1, True)]
        make_run(tmp_path / name, rows)
    output = output_of("compare", tmp_path / "sft", tmp_path / "sft-of-a-longer-name")
    lines = output.splitlines()
    assert [line.split()[0] for line in lines[lines.index("average") + 1 :][:2]] == ["sft", "sft-of-a-longer-name"]
    assert "1 untagged sample is left out" in output
    assert "Verdict with 80 conflict and 80 aligned samples (average)" in output
    assert "100.0 [83.2, 100.0]" in output, "irrelevant rows have a column"


def test_one_subset_alone_and_a_subset_that_there_is_not(runs: list[Path]) -> None:
    output = output_of("compare", *runs, "--subset", "conflict")
    assert "gap" not in output
    assert output.splitlines()[-1].endswith("uses the context more")
    error = refusal_of("compare", *runs, "--subset", "unanswerable")
    assert "--subset unanswerable: mini has none; expected aligned (40 samples), conflict (40 samples)" in error
    assert error.count("error:") == 1


def test_the_json_has_the_subsets_and_is_as_before_without_tags(runs: list[Path], tmp_path: Path) -> None:
    assert d2e("compare", *runs, "--json", tmp_path / "tagged.json") == 0
    (own,) = json.loads((tmp_path / "tagged.json").read_text())["subsets"]["datasets"]
    teacher = own["runs"][2]
    assert (teacher["run"], teacher["verdict"]) == ("teacher", "uses the context more")
    assert teacher["gap"]["mean"] == pytest.approx(0.225)
    assert teacher["changes"]["conflict"]["adjusted_p"] < 0.05
    assert d2e("compare", make_run(tmp_path / "plain", [prediction(1, True)]), "--json", tmp_path / "plain.json") == 0
    assert set(json.loads((tmp_path / "plain.json").read_text())) == {"bench", "labels", "rows"}


def test_runs_of_another_model_than_the_one_whose_habits_are_tagged_are_named(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name, habit_rows(39, 16), model=name, tagged_by=["me"]) for name in ("me", "other")]
    assert "Subsets by the habit of me; other is of another model." in " ".join(output_of("compare", *runs).split())


def test_one_run_s_table_has_a_row_a_subset_and_one_for_the_gap() -> None:
    (table,) = subset_tables(score_predictions([*habit_rows(39, 16), prediction(1, True)]))
    rows = table.rows()
    assert [row[1] for row in rows] == ["aligned", "conflict", "gap"]
    assert [row[3].split()[0] for row in rows] == ["97.5", "40.0", "57.5"]
    assert [row[4].split()[0] for row in rows] == ["–", "60.0", "–"]
    assert "1 untagged sample is left out" in table.caption
    assert subset_tables(score_predictions([prediction(1, True)])) == []


def asked(number: int, question: str, right: bool, conflict: bool) -> Prediction:
    """Make a free answer whose habit is `left`."""
    subset = "conflict" if conflict else "aligned"
    answer = {"answer": ["here" if right else "left"], "output": "The answer is: here", "habit": ["left"]}
    shape = {"relation": "none", "format": "qa", "question": question, "gold": ["here"], "subset": subset}
    return prediction(number, right, **shape, **answer)


def test_the_failing_kind_of_question_is_told_apart(tmp_path: Path) -> None:
    def rows(right: int) -> list[Prediction]:
        """12 `where`, all right; 15 companies, 10 of them conflict rows with so many right; 3 others."""
        where = [asked(n, f"Where is pump {n}?", True, n < 6) for n in range(12)]
        company = [asked(n, "Which company services it?", n - 20 < right or n >= 30, n < 30) for n in range(20, 35)]
        return [*where, *company, *(asked(n, f"Why was pump {n} moved?", False, False) for n in range(40, 43))]

    runs = [str(make_run(tmp_path / name, rows(right))) for name, right in (("plain", 1), ("swapped", 9))]
    text = output_of("compare", *runs)
    table = text[text.index("By what the questions ask for") :]
    assert re.findall(r"^(\S.*) \((\d+(?:, \d+ conflict)?)\)$", table, re.M)[:3] == [
        ("company", "15, 10 conflict"), ("where", "12, 6 conflict"), ("other questions", "3"),
    ]  # fmt: skip
    shares = re.findall(r"^  (plain|swapped) +([\d.]+) \[[\d., ]+\](?: \*)? +([\d.]+|–)", table, re.M)[:6]
    assert shares == [
        ("plain", "40.0", "10.0"), ("swapped", "93.3", "90.0"),  # 6 and 14 of 15; 1 and 9 of 10
        ("plain", "100.0", "100.0"), ("swapped", "100.0", "100.0"),
        ("plain", "0.0", "–"), ("swapped", "0.0", "–"),
    ]  # fmt: skip
    found = {one.kind: one.runs[1].changes for one in compare_runs(load_runs([*map(Path, runs)])).kinds}
    assert found["company"]["conflict"].mean == pytest.approx(0.8)
    assert found["company"]["conflict"].adjusted_p > found["company"]["conflict"].p_value
    page = tmp_path / "report.html"
    output_of("report", *runs, "--out", str(page))
    assert '<section id="kinds">' in page.read_text()


@pytest.mark.parametrize(
    "change",
    [
        {"question": "Where is it?"},  # one kind
        {"relation": "causal"},  # PIPER's
        {"format": "nli", "gold": ["positive"]},
    ],
)
def test_other_rows_have_no_table_by_kind(tmp_path: Path, change: dict[str, Any]) -> None:
    questions = ["Where is it?", "Which company services it?"] * 10
    rows = [asked(n, text, True, False).model_copy(update=change) for n, text in enumerate(questions)]
    assert not compare_runs(load_runs([make_run(tmp_path / "run", rows)])).kinds


def test_quiet_keeps_tables_and_verdicts_without_explanations(runs: list[Path]) -> None:
    loud, quiet = (output_of("compare", *map(str, runs), *more) for more in ((), ("--quiet",)))
    assert {line for line in quiet.splitlines() if line[:4] in ("sft ", "d2e ")} <= {*loud.splitlines()}
    assert "By subset (" in quiet
    assert "d2e against sft: conflict " in quiet
    assert "gap = aligned − conflict" in loud
    for explanation in ("gap = aligned", "Zhou et", "Verdict with"):
        assert explanation not in quiet
