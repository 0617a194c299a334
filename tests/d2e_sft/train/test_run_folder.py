"""What training finds in a run folder: a fresh one is used, a used one is not destroyed."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.config.recipe import Recipe
from d2e_sft.train.run_folder import clear_run, starting_point
from tests.messages import Call, messages_of


def recipe(run: Path, train: str = "train.jsonl") -> Recipe:
    return Recipe.model_validate({"data": {"train": train}, "train": {"output_dir": str(run)}})


def used(*files: str, train: str = "train.jsonl", resume: bool = False, overwrite: bool = False) -> Call:
    """Start in a folder with these files."""

    def call(tmp: Path) -> str:
        for file in files:
            (tmp / file).parent.mkdir(exist_ok=True)
            (tmp / file).write_text("{}")
        asked = recipe(tmp, train.replace("TMP", str(tmp)))
        return f"starts: {starting_point(asked, resume=resume, overwrite=overwrite)}"

    return call


CHECKPOINT = ("recipe.yaml", "checkpoint-4/checksums.json", "model.safetensors")
test_message = messages_of(
    __file__,
    {
        "a fresh folder": used(),
        "both options": used("model.safetensors", resume=True, overwrite=True),
        "a finished run": used("model.safetensors"),
        "a model that no run left": used("model.safetensors", overwrite=True),
        "a finished run to resume": used("model.safetensors", resume=True),
        "nothing to resume": used(resume=True),
        "a run with a checkpoint": used(*CHECKPOINT),
        "a run with half a checkpoint": used("recipe.yaml", "checkpoint-4/x"),
        "a run that holds its own data": used("recipe.yaml", "rows.jsonl", train="TMP/rows.jsonl", overwrite=True),
    },
)


def test_clearing_removes_what_training_left_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("checkpoint-4", "eval/piper", "eval/wiqa", "notes"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("model.safetensors", "recipe.yaml", "data.json", "held_out_predictions.jsonl", "mine.txt"):
        (tmp_path / file).touch()
    for name in ("piper", "wiqa"):
        (tmp_path / "eval" / name / "scores.json").touch()
    clear_run(tmp_path)
    said = " ".join(capsys.readouterr().err.split())
    assert "the evaluations piper, wiqa; checkpoint-4, data.json" in said
    assert "mine.txt" not in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.txt", "notes"]
