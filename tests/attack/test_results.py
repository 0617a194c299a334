"""Damage to scores, to the files that they are made from, and to the manifests of built data."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from d2e_sft.data.sample import read_samples
from d2e_sft.hub.results import benchmark_results
from d2e_sft.util.errors import UserError
from eval.compare.paper import read_table
from eval.compare.runs import load_measured, load_runs
from tests.attack.frame import Attempt, attack, flip_a_bit
from tests.eval.compare.rows import accuracy, save_result
from tests.eval.paper_runs import run as score_piper
from tests.factories import bench_rows, save_bench

SAME = "rejected with one message, or the scores as they were"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with scores of rows and of a related system, and a build."""
    folder = tmp_path_factory.mktemp("world")
    save_result(score_piper(folder / "run", engine="transformers"), accuracy([1, 0, 1]))
    save_bench(folder / "built", bench_rows(4), manifest={"suite": "piper"})
    return folder


def _shown(run: Path) -> list[Any]:
    """What comparisons, tables and cards show of the run."""
    (rows,), measured = load_runs([run], "piper"), load_measured([run], "wiqa")
    if measured is None:  # as d2e compare does
        load_runs([run], "wiqa")
    assert measured is not None
    table = read_table([run], "piper", "piper").render("markdown")
    return [rows.scores, rows.predictions, measured[0].measures, measured[0].scores, benchmark_results(run), table]


def _copy(given: Attempt) -> tuple[Path, Path]:
    """A copy of the run, and one of its files of results."""
    run = Path(shutil.copytree(given.world / "run", given.folder / "run"))
    return run, given.random.choice(sorted(file for file in run.rglob("eval/*/*") if file.is_file()))


def _refused_or_same(given: Attempt, run: Path) -> None:
    try:
        found = _shown(run)
    except UserError:
        return
    assert found == _shown(given.world / "run")


@attack("flip a bit of scores, measures, tables or records", "results", SAME, tries=500)
def test_flip_a_bit(given: Attempt) -> None:
    run, file = _copy(given)
    file.write_bytes(flip_a_bit(file.read_bytes(), given.random))
    _refused_or_same(given, run)


@attack("another number or text in scores, measures or predictions", "results", "rejected with one message", tries=300)
def test_another_value(given: Attempt) -> None:
    run, _ = _copy(given)
    file = run / "eval" / given.random.choice(["piper/scores.json", "wiqa/scores.json", "wiqa/measures.json"])
    content = place = json.loads(file.read_text())
    while True:
        key = given.random.choice(list(place) if isinstance(place, dict) else range(len(place)))
        if not (isinstance(place[key], dict | list) and place[key]):
            break
        place = place[key]
    odd = [0.9876, -1, 10**9, float("nan"), float("inf"), None, [], {}, "other", [place[key]]]
    place[key] = given.random.choice([value for value in odd if value != place[key]])
    file.write_text(json.dumps(content))
    with pytest.raises(UserError):
        _shown(run)


@attack("cut, empty or remove a file of results", "results", "rejected with one message", tries=100)
def test_cut(given: Attempt) -> None:
    run, file = _copy(given)
    kept = given.random.choice([None, 0, given.random.randrange(max(1, file.stat().st_size - 1))])
    if kept is None:
        file.unlink()
    else:
        os.truncate(file, kept)
    with pytest.raises(UserError):
        _shown(run)


@attack("cut, empty or replace the manifest of a build", "data", "its rows are not read", tries=50)
def test_manifest(given: Attempt) -> None:
    built = Path(shutil.copytree(given.world / "built", given.folder / "built"))
    manifest = built / "manifest.json"
    content = json.loads(manifest.read_text())
    odd = ["", "null", "[]", "{}", '{"files": null}', "NaN", "[" * 20_000, "\x00"]
    for left in sorted(content.keys() - {"suite"}):
        others = {key: value for key, value in content.items() if key != left}
        odd += [json.dumps(others), json.dumps({**others, left: None})]
    text = manifest.read_text()
    manifest.write_text(given.random.choice([*odd, text[: given.random.randrange(len(text))]]))
    with pytest.raises(UserError):
        read_samples(built / "test.parquet")
