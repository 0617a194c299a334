"""Published values: the data agree with themselves, and `d2e table --published` sets ours against them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from eval.compare.paper_layouts import LAYOUTS
from eval.compare.published import PAPERS, interval_of, read_published
from eval.score.scores import read_scores
from eval.score.statistics import Interval
from tests.eval.compare.rows import accuracy, save_result
from tests.eval.paper_runs import SFT, cells, printed, run, trained

RELATIONS = {"T": slice(0, 5), "Ca": slice(6, 10), "Co": slice(11, 15), "S&C": slice(16, 18)}
D2E = "{alpha: 0.5}"
TABLES = {table.table: table for table in read_published("piper").tables}


def rows_of(table: int) -> dict[tuple[str, ...], tuple[float | None, ...]]:
    keys = ("model", "method", "alpha", "setting")
    return {tuple(str(row.facts.get(key)) for key in keys): row.values for row in TABLES[table].rows}


@pytest.mark.parametrize("paper", PAPERS)
def test_every_row_has_a_value_or_a_dash_for_each_column(paper: str) -> None:
    for table in read_published(paper).tables:
        assert (table.layout is None) == bool(table.columns)
        width = len(LAYOUTS[table.layout]) if table.layout else len(table.columns)
        assert {len(row.values) for row in table.rows} == {width}, table.where


def test_averages_are_those_of_the_columns() -> None:
    for table in (2, 4, 5):
        for key, values in rows_of(table).items():
            for part in RELATIONS.values():
                own = [value for value in values[part] if value is not None]
                average = values[part.stop]
                assert average == pytest.approx(sum(own) / len(own), abs=0.101), key  # the paper rounds once more


def test_rows_that_two_tables_share_are_equal() -> None:
    two, four, five = (rows_of(table) for table in (2, 4, 5))
    frozen = {key: values for key, values in four.items() if key[1] == "frozen"}
    assert frozen.items() <= two.items()
    shared = four.keys() & five.keys()
    assert len(shared) == 4
    assert all(four[key] == five[key] for key in shared)
    averages = {key: tuple(values[part.stop] for part in RELATIONS.values()) for key, values in five.items()}
    assert {key: values for key, values in rows_of(6).items() if key[2] == "0.5"}.items() <= averages.items()
    nine = {(row.facts["method"], row.facts.get("refiner")): row.values for row in TABLES[9].rows}
    by_method = {key[1]: values for key, values in averages.items() if key[0] == "Qwen1.5-7b"}
    assert nine["w/o BOTH", None] == by_method["w/o BOTH"]
    assert nine["w/o DEE", None] == by_method["w/o DEE"]
    assert nine["D²E-SFT", "GPT-4o"] == by_method["D²E-SFT"]


def test_our_rows_have_the_published_ones_and_the_differences_below_them(tmp_path: Path) -> None:
    d2e = trained(tmp_path / "d2e", D2E, alpha=0.5)
    other = trained(tmp_path / "other", D2E, SFT, alpha=0.5)
    text = printed(d2e, other, "--published")
    _, _, _, own, published, difference, *_, second = cells(text)
    assert [cell.strip("*") for cell in own[1:]] == published[1:]
    assert published[0] == "published, Table 4, page 7"
    assert set(difference[1:]) == {"+0.0"}
    assert second[3] == "-26.0", "TRACIE: 50.0 of two rows, whose interval is too wide to exclude 76.0"
    assert "excludes the published value" in text
    json_text = printed(d2e, "--published", "--format", "json")
    assert json.loads(json_text)["rows"][0]["published"]["values"][2] == 76.0
    assert "published" not in printed(d2e)


@pytest.mark.parametrize(
    ("judge", "refiner", "found"),
    [
        ({"model": "gpt-4o", "jobs": ["quality", "refine"]}, None, True),
        ({"model": "gpt-4o", "jobs": ["quality"]}, {"model": "models/Qwen1.5-7b", "jobs": ["refine"]}, True),
        ({"model": "gpt-4o", "jobs": ["quality"]}, None, False),
        (None, None, False),
    ],
)
def test_a_judge_that_did_not_refine_is_not_the_refiner_of_table_9(
    judge: object, refiner: object, found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the recipe's data is t.parquet, here
    Path("manifest.json").write_text(json.dumps({"judge": judge, "refiner": refiner}))
    text = printed(trained(tmp_path / "d2e", D2E, alpha=0.5), "--layout", "refiner", "--published")
    assert ("published, Table 9, page 13" in text, "No published row" in text) == (found, not found)


@pytest.mark.parametrize(
    ("name", "changes", "found"),
    [
        ("models/Qwen1.5-7B-Chat", {}, "Table 4, page 7"),
        ("Qwen/Qwen1.5-72B-Chat", {}, "Table 2, page 3"),
        ("deepseek-ai/deepseek-llm-7b-chat", {"setting": "cot"}, "Table 2, page 3"),
        ("gpt-4o-2024-08-06", {}, "Table 2, page 3"),
        ("gpt-4o-mini", {}, None),
        ("Qwen/Qwen1.5-7B-Chat", {"alpha": 0.5}, None),
        ("models/mine", {}, None),
    ],
)
def test_a_model_is_found_by_the_beginning_of_its_name(
    tmp_path: Path, name: str, changes: dict[str, object], found: str | None
) -> None:
    text = printed(run(tmp_path / "run", **{"model": name, "alpha": 0.0, **changes}), "--published")
    where = [row[0].removeprefix("published, ") for row in cells(text) if row[0].startswith("published")]
    frozen = {"Table 4, page 7": "Table 2, page 3"}  # a frozen model is in both, and Table 2 comes first
    assert where == ([] if found is None else [frozen.get(found, found)])
    as_other = printed(tmp_path / "run", "--published-model", "Qwen1.5-7b")
    assert ("published, Table 2" in as_other) == (changes.get("alpha") is None)


def test_the_interval_of_an_average_is_that_of_independent_groups(tmp_path: Path) -> None:
    pair = {("ester", "subevent_conditional"): 40.0, ("cider", "subevent_conditional"): 60.0}
    found = read_scores(run(tmp_path / "run", pair) / "eval/piper/scores.json")
    for group, low, high in zip(found.groups, (0.1, 0.2), (0.3, 0.2), strict=True):
        group.mean = Interval(group.mean.mean, group.mean.mean - low, group.mean.mean + high)
    ester, _, both = (interval_of(column, found) for column in LAYOUTS["piper"][-3:])
    assert ester == Interval(0.4, pytest.approx(0.3), pytest.approx(0.7))  # type: ignore[arg-type]
    assert both is not None
    assert both.mean == pytest.approx(0.5)
    assert both.mean - both.low == pytest.approx(math.hypot(0.1, 0.2) / 2)
    assert both.high - both.mean == pytest.approx(math.hypot(0.3, 0.2) / 2)
    assert interval_of(LAYOUTS["piper"][0], found) is None
    found.groups[0].n = 1
    assert interval_of(LAYOUTS["piper"][-1], found) is None, "one sample has no interval"
    found.groups.pop(0)
    assert interval_of(LAYOUTS["piper"][-1], found) is None, "an average of fewer datasets is not the paper's"


def test_relations_of_a_set_count_alike_in_its_value_and_in_the_interval(tmp_path: Path) -> None:
    found = read_scores(
        run(tmp_path / "run", {("socialiqa", "causal"): 40.0, ("socialiqa", "temporal"): 80.0})
        / "eval/piper/scores.json"
    )
    found.groups[0].n = 30
    [column] = [column for column in LAYOUTS["ood"] if column.key == "socialiqa"]
    interval = interval_of(column, found)
    assert interval is not None
    assert interval.mean == pytest.approx(0.6), "the value of `PaperRow`"


def test_the_tables_of_a_paper_are_printed_without_runs() -> None:
    text = printed("--published", "--layout", "cost")
    assert [row[1] for row in cells(text)[2:]] == ["61", "86"]
    assert "Table 6: Data of experiment 2" in printed("--published", "--bench", "boxes")


def test_the_measures_of_a_system_stand_beside_the_values_of_their_options(tmp_path: Path) -> None:
    for name, right, options in (("a", [1] * 16, {}), ("b", [1] * 10 + [0] * 6, {"paragraph": "no"})):
        save_result(tmp_path / name, accuracy(right), options=options)
    text = printed(tmp_path / "a", tmp_path / "b", "--published")
    line = next(row for row in cells(text) if row[1] == "BERT")
    assert line[2:] == ["Total", "73.80", "100.0 (+26.2‡)", "62.5 (-11.3)"]
    assert "WIQA, published values" in text
    save_result(tmp_path / "c", accuracy([1, 0], name="macro-F1"), "crepe", options={"split": "dev", "prompt": "code"})
    named = [row[1] for row in cells(printed(tmp_path / "c", "--published")) if row[-1].endswith((")", "‡)"))]
    assert "Chance" in named
    assert "Codex soft" not in named
    content = json.loads(printed(tmp_path / "c", "--published", "--format", "json"))
    assert content["published"]["columns"][:3] == ["row", "measure", "value"]
