"""The report's radar is drawn to scale, and facts of runs stand side by side."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from eval.compare.compare import compare_runs
from eval.compare.runs import load_runs
from eval.pages.report.charts import radars
from eval.pages.report.facts import run_facts
from eval.pages.report.page import render_page
from eval.pages.report.radar import outer_ring, radar_chart
from eval.score.predictions import Prediction
from tests.eval.fake_runs import choice, make_run, prediction

RECORD = {
    "source": {"train": "t.parquet", "train_sha256": "ab", "rows": 1234, "prompt_set": "p", "prompt_set_sha256": "c"},
    "samples": 900,
    "tokens_sha256": "d",
    "processes": 8,
    "versions": {"torch": "2.13.0", "peft": "0.21.2"},
}


def polygons(svg: str) -> list[list[tuple[float, float]]]:
    """Corners of the thick lines, one list a run."""
    paths = re.findall(r'<path d="([^"]*)"[^>]*style="fill: none; [^"]*stroke-width: 1.6', svg)
    drawn = []
    for path in paths:
        numbers = re.findall(r"[ML] ([-\d.]+) ([-\d.]+)", path)
        drawn.append([(float(x), float(y)) for x, y in numbers])
    return [corners for corners in drawn if len(corners) > 3]  # fewer are the legend's


def test_a_radar_is_drawn_to_scale() -> None:
    scores = [[0.4, 0.8], [0.4, 0.2], [0.4, 0.6], [0.4, 0.1]]  # the first run is the same everywhere
    even, other = polygons(str(radar_chart("F1", list("NESW"), ["even", "other"], scores)))
    assert even[0] == even[-1]
    centre = tuple(sum(axis) / 4 for axis in zip(*even[:4], strict=True))
    unit = math.dist(even[0], centre)
    for corner, (_, value) in zip(other[:4], scores, strict=True):
        assert math.dist(corner, centre) / unit == pytest.approx(value / 0.4, rel=1e-3)
    north, east = other[0], other[1]
    assert north[1] < centre[1]
    assert east[0] > centre[0], "clockwise from the top"


def test_runs_differ_by_more_than_colour() -> None:
    svg = str(radar_chart("F1", list("abc"), ["one", "two"], [[0.1, 0.2]] * 3))
    dashes = re.findall(r"stroke-dasharray: ([^;\"]*)[^\"]*stroke-width: 1.6|stroke-width: 1.6", svg)
    assert len(set(dashes)) > 1
    markers = re.findall(r'<defs>\s*<path id="[^"]*" d="([^"]*)"', svg)
    assert len(set(markers)) >= 2


def test_the_rim_is_the_next_ring_above_all_scores() -> None:
    assert [outer_ring([[score]]) for score in (0.0, 0.2, 0.21, 0.6, 0.95, 1.0)] == [20, 20, 40, 60, 100, 100]


def test_two_axes_are_no_radar() -> None:
    with pytest.raises(ValueError, match="at least 3"):
        radar_chart("F1", ["a", "b"], ["run"], [[0.5], [0.5]])


def _bench(*groups: tuple[str, str]) -> list[Prediction]:
    return [
        choice(n, n % 2 == 0, dataset=dataset, relation=relation)
        for n, (dataset, relation) in enumerate([*groups, *groups])
    ]


def test_there_is_a_radar_of_datasets_and_one_of_relations_where_they_have_three_axes(tmp_path: Path) -> None:
    two = _bench(("a", "temporal"), ("b", "causal"))
    three = _bench(("a", "temporal"), ("a", "causal"), ("b", "causal"))
    four = [*three, *(row.model_copy(update={"id": f"x{row.id}"}) for row in _bench(("c", "counterfactual")))]
    captions = []
    for name, rows in {"two": two, "three": three, "four": four}.items():
        captions.append([one.caption for one in radars(compare_runs(load_runs([make_run(tmp_path / name, rows)])))])
    assert [len(own) for own in captions] == [0, 1, 2]
    assert "An axis is a dataset and relation. n = 2 samples an axis." in captions[1][0]
    assert "plain average of its datasets. n = 2 to 4 samples" in captions[2][1]


def test_facts_are_side_by_side_and_differences_are_marked(tmp_path: Path) -> None:
    rows = [prediction(1, True)]
    same = {"seconds": 5.0, "model": "some/model"}
    paths = [
        make_run(tmp_path / "base", rows, **same, environment={"torch": "2.9.0", "device": "cpu", "processes": 1}),
        make_run(tmp_path / "d2e", rows, **same, environment={"torch": "2.9.0", "device": "H200", "processes": 8}),
    ]
    (paths[1] / "data.json").write_text(json.dumps(RECORD))
    runs = load_runs(paths)
    tables = run_facts(runs, [None, None])
    environment = {fact.name: fact for fact in tables["Environment of the evaluation"]}
    assert environment["torch"].shared
    assert environment["device"].values == ("cpu", "H200")
    assert environment["device"].differs
    training = {fact.name: fact for fact in tables["Training and its environment"]}
    assert training["processes"].values == ("–", "8")
    assert training["rows in it"].values == ("–", "1,234")
    assert not training["torch"].differs, "a run that was not trained has no other version"
    page = render_page(runs)
    assert "≠ device</th><td>cpu</td><td>H200</td>" in page
    assert '<td colspan="2">some/model</td>' in page


def test_a_damaged_record_of_the_training_is_named(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [prediction(1, True)])
    (run / "data.json").write_text('{"samples": "many"}')
    with pytest.raises(UserError, match=r"run/data\.json: not the record of a training \(.*samples: got 'many'"):
        render_page(load_runs([run]))
