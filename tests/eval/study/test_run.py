"""`d2e sweep STUDY` on a tiny model: what it leaves, what it does not repeat, and what a failure does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from d2e_sft import cli
from tests.command import d2e
from tests.tiny import save_tiny_model

STUDY = """
recipe: {world}/recipe.yaml
out: {world}/out
rows: {world}/rows.json
build: >-
  --datasets habit --seed {{seed}} habit.things_per_story=2 habit.moves=1 habit.train_samples=8 habit.test_samples=4
overrides: {{train.seed: "{{seed}}"}}
axes:
  seed: [0, 1]
  objective: {{sft: {{d2e.debias: false, d2e.distill: false}}, d2e: {{}}}}
reference: {{objective: sft}}
"""
RECIPE = """
model: {{name: {world}/model}}
data: {{train: unused, max_length: 1000}}
train: {{output_dir: unused, max_steps: 2, batch_size: 4, per_device_train_batch_size: 4, learning_rate: 1e-3,
       eval_steps: 1,
         bf16: false}}
"""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(Path(cli.__file__).parents[1]))
    save_tiny_model(tmp_path / "model")
    (tmp_path / "recipe.yaml").write_text(RECIPE.format(world=tmp_path))
    (tmp_path / "study.yaml").write_text(STUDY.format(world=tmp_path))
    return tmp_path


def rows(world: Path) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = json.loads((world / "rows.json").read_text())
    return content


def test_a_study_trains_each_combination_once_and_goes_on_where_it_stopped(
    world: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    study = str(world / "study.yaml")
    assert d2e("sweep", study, "--dry-run") == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["0,sft", "0,d2e", "1,sft", "1,d2e"]
    assert not (world / "out").exists()

    assert d2e("sweep", study, "seed=0", "--jobs", "2") == 0
    assert "2 combinations: 0 in" in capsys.readouterr().out
    # Before the first step and after each of two; plain, debiased and without context.
    assert len(rows(world)) == 2 * 3 * 3
    assert {row["step"] for row in rows(world)} == {0, 1, 2}
    assert all(row["cpu_seconds"] > 0 for row in rows(world) if row["step"])
    assert len(list((world / "out" / "data").iterdir())) == 1
    assert not list((world / "out" / "runs").glob("*/*.safetensors"))

    request.getfixturevalue("quick_steps")
    assert d2e("sweep", study) == 0
    assert "4 combinations: 2 in" in capsys.readouterr().out
    assert len(rows(world)) == 2 * 2 * 3 * 3
    assert "reference" in (world / "out" / "study.md").read_text()
    assert (world / "out" / "study.html").is_file()


@pytest.mark.usefixtures("quick_steps")
def test_rows_of_other_settings_stand_in_a_file_of_their_own(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study, own = str(world / "study.yaml"), world / "own.json"
    only = ("seed=0", "objective=sft")
    assert d2e("sweep", study, *only) == 0
    assert not any("overrides" in row for row in rows(world))
    before = rows(world)
    assert d2e("sweep", study, *only, "train.learning_rate=0.5") == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "has rows measured with the study's own settings; this call asks for train.learning_rate=0.5" in said
    assert "--rows FILE" in said
    assert d2e("sweep", study, *only, "train.learning_rate=0.5", "--rows", own) == 0
    assert rows(world) == before
    kept = json.loads(own.read_text())
    assert {row["overrides"]["train.learning_rate"] for row in kept} == {"0.5"}
    assert d2e("sweep", study, *only, "--rows", own) == 1
    assert "or give train.learning_rate=0.5" in " ".join(capsys.readouterr().err.split())


@pytest.mark.usefixtures("quick_steps")
def test_a_combination_that_fails_is_named_and_keeps_no_other_from_being_trained(
    world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = world / "study.yaml"
    study.write_text(study.read_text().replace("d2e: {}", "d2e: {model.lora.target_modules: [nothing]}"))
    assert d2e("sweep", study, "seed=0") == 1
    printed = capsys.readouterr()
    assert "0,d2e: FAILED" in printed.out
    assert "1 of 2 combinations failed" in printed.err
    assert {row["objective"] for row in rows(world)} == {"sft"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--bench", "x"], "--bench x: not for a study, which is scored by its probe"),
        (["--eval-args", "--dtype float32"], "--eval-args --dtype float32: not for a study"),
        (["objective=sftt"], "objective=sftt: expected one of sft, d2e"),
        (["d2e.alfa=1"], "unknown key 'd2e.alfa'"),
    ],
)
def test_what_a_study_has_not_is_refused(
    world: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert d2e("sweep", world / "study.yaml", *arguments) == 1
    assert said in capsys.readouterr().err
