"""What training finds in a run folder: a fresh one is used, a used one is not destroyed."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.config.recipe import Recipe
from d2e_sft.train.run_folder import clear_run, starting_point
from d2e_sft.util.errors import UserError


def recipe(run: Path, train: str = "train.jsonl") -> Recipe:
    return Recipe.model_validate({"data": {"train": train}, "train": {"output_dir": str(run)}})


def test_a_fresh_folder_is_a_beginning(tmp_path: Path) -> None:
    assert starting_point(recipe(tmp_path / "new"), resume=False, overwrite=False) is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"resume": True, "overwrite": True}, "--resume and --overwrite exclude each other"),
        ({"resume": False, "overwrite": False}, "contains a run, which is finished\n  remedy: start over"),
        ({"resume": False, "overwrite": True}, "is not a run folder"),
        (
            {"resume": True, "overwrite": False},
            "is finished, and contains no .*\n  remedy: start over with --overwrite",
        ),
    ],
)
def test_a_used_folder_is_refused(tmp_path: Path, options: dict[str, bool], said: str) -> None:
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(UserError, match=said):
        starting_point(recipe(tmp_path), **options)


@pytest.mark.parametrize(
    ("files", "resume", "remedy"),
    [
        ([], True, "contains no run to resume\n  remedy: to start one, leave --resume out"),
        (
            ["recipe.yaml", "checkpoint-4/checksums.json", "model.safetensors"],
            False,
            "continue it with --resume",
        ),
        (["recipe.yaml", "checkpoint-4/x"], False, "continue it with --resume"),
    ],
)
def test_a_remedy_is_one_that_works(tmp_path: Path, files: list[str], resume: bool, remedy: str) -> None:
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    with pytest.raises(UserError, match=remedy):
        starting_point(recipe(tmp_path), resume=resume, overwrite=False)


def test_a_run_that_holds_its_own_data_is_not_overwritten(tmp_path: Path) -> None:
    train = tmp_path / "train.jsonl"
    train.touch()
    recipe(tmp_path).save(tmp_path)
    with pytest.raises(UserError, match="which --overwrite would clear"):
        starting_point(recipe(tmp_path, str(train)), resume=False, overwrite=True)


def test_clearing_removes_what_training_left_and_nothing_else(tmp_path: Path) -> None:
    for folder in ("checkpoint-4", "eval", "notes"):
        (tmp_path / folder).mkdir()
    for file in ("model.safetensors", "recipe.yaml", "data.json", "held_out_predictions.jsonl", "mine.txt"):
        (tmp_path / file).touch()
    clear_run(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.txt", "notes"]
