"""Templates, filled in with the gold answers, score as perfect predictions: of every system and task."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from eval.systems.scored_files import score_files, write_template
from tests.eval.systems.cases import CASES, WITHOUT_PLANNER, save_answers, save_gold
from tests.eval.systems.files import read_rows, save
from tests.factories import save_bench
from tests.tiny import make_sample


@pytest.mark.parametrize("ending", [".csv", ".jsonl"])
@pytest.mark.parametrize("case", WITHOUT_PLANNER)
def test_gold_answers_in_a_template_are_perfect(tmp_path: Path, case: str, ending: str) -> None:
    system, *given = case.split()
    gold, file = save_gold(tmp_path, case), tmp_path / f"empty{ending}"
    write_template(system, gold, given, file)
    with pytest.raises(UserError, match=r"filled in|got ''"):
        score_files(system, [file], gold, given)
    [scored] = score_files(system, [save_answers(tmp_path / f"p{ending}", case, gold)], gold, given)
    means = [one.interval.mean for one in scored.result.measures]
    assert means
    assert not CASES[case].perfect or means == pytest.approx([1] * len(means))


def test_openpi_lists_are_the_official_form_line_by_line(tmp_path: Path) -> None:
    official = {
        "schemata": {
            "1": [{"water": ["temperature", "place"], "kettle": ["temperature"]}, {"tea": ["existence"]}],
            "2": [{}],
        },
        "complete": {"1": [["temperature of water was cold before and hot after"], []], "2": [[]]},
    }
    lines = {
        "schemata": "1,1,water,temperature\n1,1,water,place\n1,1,kettle,temperature\n1,2,tea,existence\n2,1,,\n",
        "complete": "1,1,temperature of water was cold before and hot after\n1,2,\n2,1,\n",
    }
    columns = {"schemata": "procedure,step,entity,attribute", "complete": "procedure,step,sentence"}
    for task, content in official.items():
        whole = save(tmp_path / "p.json", content)
        flat = save(tmp_path / f"{task}.csv", f"{columns[task]}\n{lines[task]}")
        gold, given = save_gold(tmp_path, f"openpi2 task={task}"), [f"task={task}"]
        expected, found = score_files("openpi2", [whole, flat], gold, given)
        assert found.result.scores == expected.result.scores


def test_a_template_of_rows(tmp_path: Path) -> None:
    bench = save_bench(tmp_path / "bench", [make_sample(n, split="test") for n in range(3)])
    assert write_template("rows", bench, [], tmp_path / "p.jsonl") == "3 lines, to fill in: output"
    rows = read_rows(tmp_path / "p.jsonl")
    assert [set(row) for row in rows] == [{"id", "dataset", "output"}] * 3
    with pytest.raises(UserError, match="no output is filled in"):
        score_files("rows", [tmp_path / "p.jsonl"], bench, [])


@pytest.mark.parametrize(
    ("name", "message"),
    [("p.txt", r"ends in \.jsonl or \.csv"), ("there.csv", "exists, and may hold answers")],
)
def test_a_name_that_will_not_do_is_refused(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "there.csv").write_text("ques_id,answer\n")
    gold = save_gold(tmp_path, "wiqa")
    with pytest.raises(UserError, match=message):
        write_template("wiqa", gold, [], tmp_path / name)
