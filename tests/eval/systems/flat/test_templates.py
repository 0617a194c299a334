"""Templates, filled in with the gold answers, score as perfect predictions: of every system and task."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from d2e_sft.util.errors import UserError
from eval.systems.flat.lines import Line
from eval.systems.flat.templates import write_template
from eval.systems.scored_files import score_files
from tests.eval.systems.boxes import rows as boxes
from tests.eval.systems.crepe import procedures as crepe
from tests.eval.systems.openpi2 import procedures as openpi2
from tests.eval.systems.wiqa.files import QUESTIONS, save_lines
from tests.factories import save_bench
from tests.tiny import make_sample

SALIENCE = {
    "1": {
        "states": [
            {
                "entity": name,
                "global_salience": value,
                "answers": {"step1": {"local_salience": value}, "step2": {"local_salience": 5 - value}},
            }
            for name, value in (("water", 5), ("tea", 2))
        ]
    }
}
ENTITIES = {"1": {"entities": [["water", "the liquid"], ["kettle"], ["tea", "the brew"]]}}
ATTRIBUTES = {"1": {"entity_attr_dict": {"water": ["heat | temperature", "place | location"], "tea": ["existence"]}}}


def fill_crepe(row: Line) -> Line:
    events = [b for b in crepe.GOLD[row["procedure"]]["steps"][int(row["step"])] if b["type"] == "event"]
    return {**row, "change": next((b["change"] for b in events if b["event"] == row["event"]), "equally likely")}


def fill_wiqa(row: Line) -> Line:
    return {
        **row,
        "answer": next(q["question"]["answer_label"] for q in QUESTIONS if q["metadata"]["ques_id"] == row["ques_id"]),
    }


def fill_boxes(row: Line) -> Line:
    text = boxes.ROWS[int(row["line"]) - 1]["masked_content"]
    return {**row, "prediction": text.removeprefix("<extra_id_0> ")}


def fill_salience(row: Line) -> Line:
    state = next(s for s in SALIENCE["1"]["states"] if s["entity"] == row["entity"])
    step = state["answers"].get(f"step{row['step']}")
    return {**row, "salience": state["global_salience"] if step is None else step["local_salience"]}


def fill_entities(row: Line) -> Line:
    return {**row, "cluster": next(n for n, names in enumerate(ENTITIES["1"]["entities"]) if row["name"] in names)}


def fill_attributes(row: Line) -> Line:
    groups = ATTRIBUTES["1"]["entity_attr_dict"][row["entity"]]
    return {**row, "cluster": next(n for n, names in enumerate(groups) if row["attribute"] in names.split(" | "))}


def save_json(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


CASES: dict[str, tuple[Callable[[Path], Path], Callable[[Line], Line]]] = {
    "wiqa": (lambda folder: save_lines(folder / "g.jsonl", QUESTIONS), fill_wiqa),
    "boxes": (lambda folder: boxes.save(folder / "g.jsonl", boxes.ROWS), fill_boxes),
    "crepe": (lambda folder: save_json(folder / "g.json", crepe.GOLD), fill_crepe),
    "openpi2 task=salience": (lambda folder: save_json(folder / "g.json", SALIENCE), fill_salience),
    "openpi2 task=entity_clusters": (lambda folder: save_json(folder / "g.json", ENTITIES), fill_entities),
    "openpi2 task=attribute_clusters": (lambda folder: save_json(folder / "g.json", ATTRIBUTES), fill_attributes),
}


def rows_of(file: Path) -> list[Line]:
    with file.open(encoding="utf-8", newline="") as source:
        return list(csv.DictReader(source)) if file.suffix == ".csv" else [json.loads(line) for line in source]


def save_rows(file: Path, rows: list[Line]) -> Path:
    with file.open("w", encoding="utf-8", newline="") as target:
        if file.suffix == ".csv":
            writer = csv.DictWriter(target, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        else:
            target.writelines(json.dumps(row) + "\n" for row in rows)
    return file


@pytest.mark.parametrize("ending", [".csv", ".jsonl"])
@pytest.mark.parametrize("case", CASES)
def test_gold_answers_in_a_template_are_perfect(tmp_path: Path, case: str, ending: str) -> None:
    save_gold, fill = CASES[case]
    system, *given = case.split()
    gold, file = save_gold(tmp_path), tmp_path / f"p{ending}"
    write_template(system, gold, given, file)
    with pytest.raises(UserError, match=r"filled in|got ''"):
        score_files(system, [file], gold, given)
    save_rows(file, [fill(row) for row in rows_of(file)])
    [scored] = score_files(system, [file], gold, given)
    assert [(one.name, one.interval.mean) for one in scored.measures] == [
        (one.name, pytest.approx(1)) for one in scored.measures
    ]
    assert scored.measures


def flat_openpi(task: str, rows: list[Line], folder: Path, gold: Any) -> dict[str, Any]:
    file = save_rows(folder / f"{task}.csv", rows)
    [scored] = score_files("openpi2", [file], save_json(folder / "g.json", gold), [f"task={task}"])
    return scored.scores


def test_openpi_lists_are_the_official_form_line_by_line(tmp_path: Path) -> None:
    official = {
        "schemata": {
            "1": [{"water": ["temperature", "place"], "kettle": ["temperature"]}, {"tea": ["existence"]}],
            "2": [{}],
        },
        "complete": {"1": [["temperature of water was cold before and hot after"], []], "2": [[]]},
    }
    lines = {
        "schemata": [("1", 1, "water", "temperature"), ("1", 1, "water", "place"), ("1", 1, "kettle", "temperature"),
                     ("1", 2, "tea", "existence"), ("2", 1, "", "")],
        "complete": [("1", 1, "temperature of water was cold before and hot after"), ("1", 2, ""), ("2", 1, "")],
    }  # fmt: skip
    columns = {"schemata": ("procedure", "step", "entity", "attribute"), "complete": ("procedure", "step", "sentence")}
    for task, content in official.items():
        rows = [dict(zip(columns[task], line, strict=True)) for line in lines[task]]
        found = flat_openpi(task, rows, tmp_path, openpi2.expanded())
        whole = save_json(tmp_path / "p.json", content)
        [expected] = score_files("openpi2", [whole], tmp_path / "g.json", [f"task={task}"])
        assert found == expected.scores


def test_openpi_states_are_filled_in_in_their_order(tmp_path: Path) -> None:
    gold = save_json(tmp_path / "g.json", openpi2.ranked())
    file = tmp_path / "p.csv"
    write_template("openpi2", gold, ["task=states"], file)
    save_rows(file, [{**row, "before": "x", "after": "y"} if row["entity"] else row for row in rows_of(file)])
    [scored] = score_files("openpi2", [file], gold, ["task=states"])
    assert scored.scores["states_accuracy"] == 0
    assert scored.measures[0].interval.mean == 0


def test_a_template_of_rows_and_of_every_option(tmp_path: Path) -> None:
    bench = save_bench(tmp_path / "bench", [make_sample(n, split="test") for n in range(3)])
    assert write_template("rows", bench, [], tmp_path / "p.jsonl") == "3 lines, to fill in: output"
    rows = rows_of(tmp_path / "p.jsonl")
    assert [set(row) for row in rows] == [{"id", "dataset", "output"}] * 3
    with pytest.raises(UserError, match="no output is filled in"):
        score_files("rows", [tmp_path / "p.jsonl"], bench, [])


@pytest.mark.parametrize(
    ("name", "message"),
    [("p.txt", r"ends in \.jsonl or \.csv"), ("there.csv", "is there already, and may hold answers")],
)
def test_a_name_that_will_not_do_is_refused(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "there.csv").write_text("ques_id,answer\n")
    gold = save_lines(tmp_path / "g.jsonl", QUESTIONS)
    with pytest.raises(UserError, match=message):
        write_template("wiqa", gold, [], tmp_path / name)
