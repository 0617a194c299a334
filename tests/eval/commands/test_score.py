"""`d2e score`: where the scores go, and files that are not there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest

from eval.systems.openpi2.task import PredictionKind
from eval.systems.registry import SYSTEM_NAMES
from tests.command import d2e
from tests.eval.benches import save_bench
from tests.eval.systems.boxes.rows import ROWS, save
from tests.eval.systems.crepe import procedures as crepe
from tests.eval.systems.openpi2 import procedures as openpi2
from tests.eval.systems.wiqa.files import QUESTIONS
from tests.tiny import make_sample

TEXTS = ["the cup", "the hat and the pen", "nothing", "nothing", "the pen", "nothing"]  # the last one is wrong


def test_scores_are_printed_as_tables_or_json_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gold = save(tmp_path / "test.jsonl", ROWS)
    answers = save(tmp_path / "p.jsonl", [{"prediction": text} for text in TEXTS])
    call = ("score", "boxes", "--predictions", answers, "--gold", gold)
    assert d2e(*call, "--json", tmp_path / "scores.json") == 0
    printed = capsys.readouterr().out
    assert "| whole states" in printed
    assert f"scores: {tmp_path / 'scores.json'}" in printed
    assert d2e(*call, "--json", "-") == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores == json.loads((tmp_path / "scores.json").read_text())
    assert scores["questions"] == 6
    assert scores["accuracy"]["mean"] == pytest.approx(5 / 6)


@pytest.mark.parametrize("option", ["--predictions", "--gold"])
def test_a_file_that_is_not_there_is_named_by_its_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    files = {"--predictions": save(tmp_path / "p.jsonl", []), "--gold": save(tmp_path / "test.jsonl", ROWS)}
    files[option] = tmp_path / "none.jsonl"
    assert d2e("score", "boxes", *(part for pair in files.items() for part in pair)) == 1
    assert f"{option} {tmp_path / 'none.jsonl'}: no such file" in capsys.readouterr().err


def test_folders_stand_for_the_files_in_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path / "raw" / "test.jsonl", ROWS)
    save(tmp_path / "run" / "eval" / "boxes" / "answers_by_box.jsonl", [{"prediction": text} for text in TEXTS])
    call = ("score", "boxes", "--predictions", tmp_path / "run", "--gold", tmp_path / "raw", "--json", "-")
    assert d2e(*call) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"]["mean"] == pytest.approx(5 / 6)


def documented() -> dict[str, str]:
    """The example files of docs/systems.md by the arguments of `d2e score`."""
    text = (Path(__file__).parents[3] / "docs" / "systems.md").read_text(encoding="utf-8")
    found = re.findall(r"^`d2e score ([^`]+)`:.*?\n\n```json\n(.*?)```", text, flags=re.MULTILINE | re.DOTALL)
    return dict(found)


def gold_of(folder: Path, arguments: str) -> Path:
    """Gold of which the documented example is a prediction."""
    name = arguments.rpartition("=")[2]
    names = {"1": ["water", "the liquid", "kettle", "tea", "the brew"]}
    contents: dict[str, Any] = {
        "crepe": crepe.GOLD,
        "schemata": openpi2.expanded(),
        "complete": openpi2.expanded(),
        "states": openpi2.ranked(),
        "salience": {
            "1": {
                "states": [
                    {
                        "entity": "water",
                        "global_salience": 5,
                        "answers": {"step1": {"local_salience": 5}, "step2": {"local_salience": 1}},
                    }
                ]
            }
        },
        "entity_clusters": {"1": {"entities": [names["1"][:2], names["1"][2:3], names["1"][3:]]}},
        "attribute_clusters": {
            "1": {"entity_attr_dict": {"water": ["heat | temperature", "place | location"], "tea": ["existence"]}}
        },
    }
    if name == "rows":
        rows = [make_sample(n, dataset="keys", split="test", answers=["garage"]) for n in range(3)]
        return save_bench(folder / "bench", rows)
    if name in ("boxes", "wiqa"):
        return save(folder / "gold.jsonl", ROWS if name == "boxes" else QUESTIONS)
    return openpi2.save(folder / "gold.json", contents[name])


@pytest.mark.parametrize("arguments", [name for name in documented() if "pddl" not in name])
def test_the_documented_examples_are_files_that_are_scored(
    tmp_path: Path, arguments: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = documented()[arguments]
    assert len(text.splitlines()) == 3
    file = tmp_path / "predictions.json"
    file.write_text(text, encoding="utf-8")
    more = ["--set", "missing=leave_out"] if arguments in ("crepe", "wiqa") else []
    call = ("--predictions", file, "--gold", gold_of(tmp_path, arguments), "--json", "-")
    assert d2e("score", *arguments.split(), *call, *more) == 0
    assert json.loads(capsys.readouterr().out)


def test_every_scorer_has_a_documented_example() -> None:
    scorers = [name for name in SYSTEM_NAMES if name != "openpi2"]
    tasks = [f"openpi2 --set task={kind}" for kind in get_args(PredictionKind)]
    assert sorted(documented()) == sorted(["rows", *scorers, *tasks])
