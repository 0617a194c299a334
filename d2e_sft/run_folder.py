"""The run folder: what training finds in it, refuses to destroy, and clears when told to.

A run folder holds the resolved recipe, the model, `checkpoint-N` folders while it trains, and `eval/`. Leftovers of
an earlier run would be mistaken for results of a new one (an old adapter is loaded before new full weights), so
training starts in a clean folder or not at all.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from d2e_sft.errors import UserError
from d2e_sft.recipe import RECIPE_FILE, Recipe, load_recipe
from d2e_sft.sample import BAD_ROWS_FILE

_TRAINER_STATE = "trainer_state.json"
_LEFT_BY_TRAINING = (
    "checkpoint-*",
    "adapter_*",
    "*.safetensors",
    "*.safetensors.index.json",
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "chat_template.jinja",
    "training_args.bin",
    _TRAINER_STATE,
    RECIPE_FILE,
    BAD_ROWS_FILE,
    "eval",
)
# Changing these does not change what a step computes, so a resumed run may differ in them.
_FREE_TO_CHANGE = ("eval.", "train.output_dir", "train.logging_steps", "train.save_", "train.report_to")


def last_checkpoint(run: Path) -> Path | None:
    """The newest whole checkpoint: its state file is written last, so one without it was cut off."""
    whole = [folder for folder in run.glob("checkpoint-*") if (folder / _TRAINER_STATE).is_file()]
    return max(whole, key=lambda folder: int(folder.name.rpartition("-")[2]), default=None)


def starting_point(recipe: Recipe, *, resume: bool, overwrite: bool) -> Path | None:
    """The checkpoint to continue from, or None to start anew; changes nothing on disk.

    Raises:
        UserError: the folder holds a run and neither option is given; there is nothing to resume; the recipe
            differs from the one that the run began with; both options are given.
    """
    run = Path(recipe.train.output_dir)
    if resume and overwrite:
        raise UserError("--resume and --overwrite exclude each other", "give one of them")
    if run.exists() and not run.is_dir():
        raise UserError(f"train.output_dir={str(run)!r}: is a file; expected a folder for the run")
    if resume:
        checkpoint = last_checkpoint(run)
        if checkpoint is None:
            raise UserError(
                f"{run}: holds no checkpoint to resume from",
                remedy="checkpoints are written where train.save_steps is set; to train anew, drop --resume",
            )
        _refuse_changed_recipe(recipe, run)
        return checkpoint
    used = any(next(run.glob(pattern), None) for pattern in ("checkpoint-*", "*.safetensors", _TRAINER_STATE))
    if overwrite:
        _refuse_to_clear(recipe, run)
    if used and not overwrite:
        raise UserError(
            f"{run}: already holds a run",
            remedy="continue it with --resume, train anew with --overwrite, or choose another train.output_dir",
        )
    return None


def clear_run(run: Path) -> None:
    """Remove what an earlier training and its evaluation left in the folder, and nothing else."""
    for pattern in _LEFT_BY_TRAINING:
        for path in run.glob(pattern):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def _refuse_to_clear(recipe: Recipe, run: Path) -> None:
    """Overwriting removes files, so it must be sure that the folder is a run and that nothing it needs is in it."""
    if run.is_dir() and any(run.iterdir()) and not (run / RECIPE_FILE).is_file():
        raise UserError(
            f"{run}: is not a run folder (it holds no {RECIPE_FILE}), so --overwrite removes nothing from it",
            remedy="choose an empty folder as train.output_dir",
        )
    for key, value in (("model.name", recipe.model.name), ("data.train", recipe.data.train)):
        path = Path(value)
        if path.exists() and path.resolve().is_relative_to(run.resolve()):
            raise UserError(
                f"{key}={value!r}: lies in train.output_dir={str(run)!r}, which --overwrite would clear",
                remedy="choose another train.output_dir",
            )


def _refuse_changed_recipe(recipe: Recipe, run: Path) -> None:
    if not (run / RECIPE_FILE).is_file():
        return
    before = dict(_flat(load_recipe(run / RECIPE_FILE).model_dump()))
    now = dict(_flat(recipe.model_dump()))
    changed = [
        f"{key}: {before.get(key)!r} → {now.get(key)!r}"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key) and not key.startswith(_FREE_TO_CHANGE)
    ]
    if changed:
        raise UserError(
            f"{run}: was begun with another recipe ({'; '.join(changed)})",
            remedy="resume with the recipe it was begun with, or train into another train.output_dir",
        )


def _flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
