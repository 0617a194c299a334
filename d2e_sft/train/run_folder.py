"""The run folder: where to resume, and how to start over.

A run folder contains the resolved recipe, the record of its data, the model, `checkpoint-N` folders and `eval/`.
Training starts only in a clean folder, since files of an earlier run would be taken for results of the new one.
Nothing here imports torch, so that a folder that does not fit is reported at once.
"""

import json
import re
import shutil
from pathlib import Path
from typing import Any

from d2e_sft.config.recipe import RECIPE_FILE, Recipe, flat, load_recipe
from d2e_sft.data.data_record import DATA_FILE, refuse_other_source
from d2e_sft.data.sample import BAD_ROWS_FILE
from d2e_sft.model.storage.folder import check_dependencies
from d2e_sft.model.storage.seal import SEAL_FILE, damage
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import removal
from d2e_sft.util.locks import LOCK_FILE
from d2e_sft.util.terminal import warn

TRAINER_STATE = "trainer_state.json"  # marks a finished run
# Files of rows begin with _, so that `push_to_hub` of transformers leaves them out.
PREDICTIONS_FILE = "_held_out_predictions.jsonl"
SKIPPED_FILE = f"_{BAD_ROWS_FILE}"
ROWS_FILE = "_{}_rows.parquet"
NON_FINITE_FILE = "non_finite.json"
ASIDE = ".saving"  # folder in which a model is written before it is moved into its place
_ANEW = "start over with --overwrite (overwrite_output_dir=True), or choose another train.output_dir"
_CHECKPOINT = re.compile(r"checkpoint-[0-9]+")
_LEFT_BY_TRAINING = (
    *("checkpoint-*", "adapter_*", "*.safetensors", "*.safetensors.index.json", "config.json", ASIDE, "eval"),
    *("generation_config.json", "tokenizer*", "chat_template.jinja", "training_args.bin", TRAINER_STATE),
    *(SEAL_FILE, RECIPE_FILE, f"{RECIPE_FILE}.partial", DATA_FILE, f"{DATA_FILE}.partial"),
    *(SKIPPED_FILE, PREDICTIONS_FILE, NON_FINITE_FILE),
)
# Keys that a resumed run may change, since they do not change a step. Data and prompt set are compared by content.
_FREE_TO_CHANGE = (
    *("data.train", "data.prompt_set", "data.dev", "data.max_dev_samples", "data.probe", "data.max_probe_samples"),
    *("eval.", "train.output_dir", "train.logging_steps", "train.save_", "train.eval_steps"),
    *("train.sample_predictions", "train.project", "train.report_to"),
)
_LENGTH = ("train.max_steps", "train.num_train_epochs")  # may grow: the steps so far stay as they are


def checkpoint_folders(run: Path) -> list[Path]:
    """The run's `checkpoint-N` folders, newest first."""
    folders = [path for path in run.glob("checkpoint-*") if _CHECKPOINT.fullmatch(path.name) and path.is_dir()]
    return sorted(folders, key=step_of, reverse=True)


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])


def checkpoints_of(run: Path, *, sealed: bool = True) -> list[Path]:
    """Those that are sealed, damaged or not, or those never sealed."""
    return [path for path in checkpoint_folders(run) if (path / SEAL_FILE).is_file() is sealed]


def last_checkpoint(run: Path) -> Path | None:
    """Return the newest whole checkpoint, None if none was completed; warns about those it passes over."""
    for checkpoint in checkpoints_of(run, sealed=False):
        warn(f"{checkpoint}: {SEAL_FILE} is missing, so its save was interrupted; it is ignored")
    damaged: list[str] = []
    for checkpoint in checkpoints_of(run):
        problem = damage(checkpoint, cached=False)
        if problem is None:
            for line in damaged:
                warn(f"damaged checkpoint passed over: {line}")
            return checkpoint
        damaged.append(f"{checkpoint}: {problem}")
    if damaged:
        raise UserError("\n  ".join([f"{run}: every checkpoint is damaged", *damaged]), "start over with --overwrite")
    return None


def check_folder(recipe: Recipe, *, resume: bool, overwrite: bool) -> None:
    """Check, without reading a checkpoint, that a training can start or resume in the run folder; changes nothing.

    Raises UserError if the folder contains a run and neither option is given, or both are, or there is nothing to
    resume. The recipe and the data must be the run's, too.
    """
    run = Path(recipe.train.output_dir)
    if resume and overwrite:
        raise UserError("--resume and --overwrite exclude each other", "give one of them")
    if resume:
        check_resumable(recipe, run)
    elif overwrite:
        refuse_to_clear(recipe.model.name, recipe.data.train, run)
    else:
        refuse_run(run)


def contains_run(run: Path) -> bool:
    """Whether the folder contains a checkpoint, a model or the mark of a finished run."""
    return next(run.glob("checkpoint-*"), None) is not None or _is_finished(run)


def _is_finished(run: Path) -> bool:
    return any(next(run.glob(pattern), None) for pattern in ("*.safetensors", TRAINER_STATE))


def what_is_kept(run: Path) -> str:
    """Say which checkpoint an interrupted run has, and how to continue, or how to have one the next time."""
    for newest in checkpoints_of(run):
        return f"{newest.name} is saved; --resume continues {run}"
    return "no checkpoint was saved; train.save_steps=N saves one every N steps"


def refuse_run(run: Path) -> None:
    if contains_run(run):
        resumable = bool(checkpoints_of(run)) or not _is_finished(run)
        raise UserError(
            f"{run}: already contains a run{'' if resumable else ', which is finished'}",
            remedy=f"{'continue it with --resume (resume_from_checkpoint=True), ' if resumable else ''}{_ANEW}",
        )


def resuming_point(run: Path) -> Path | None:
    """Return the newest whole checkpoint, its states and the models that it depends on checked; None without one.

    Changes nothing on disk.
    """
    checkpoint = last_checkpoint(run)
    if checkpoint is None:
        return None
    from d2e_sft.train.checkpoints import check_states  # imports torch

    check_dependencies(checkpoint)
    check_states(checkpoint)
    return checkpoint


def is_complete(recipe: Recipe) -> bool:
    """Whether the recipe's own run is finished, and none of its checkpoints is of a later step.

    A `train.bf16` that is null becomes the run's, as in a resumed run.
    """
    run = Path(recipe.train.output_dir)
    marks = (run / TRAINER_STATE, run / RECIPE_FILE)
    if not all(mark.is_file() for mark in marks) or next(run.glob("*.safetensors"), None) is None:
        return False
    keep_precision(recipe)
    last = _last_step(run)
    if last is None or _changed_keys(recipe, run) or any(step_of(newest) > last for newest in checkpoints_of(run)[:1]):
        return False
    refuse_other_source(recipe, run)
    return True


def _last_step(run: Path) -> int | None:
    """The step at which the run finished; None if its state cannot be read."""
    try:
        step = json.loads((run / TRAINER_STATE).read_text(encoding="utf-8"))["global_step"]
    except (ValueError, KeyError, TypeError):
        return None
    return step if isinstance(step, int) else None


def check_resumable(recipe: Recipe, run: Path) -> list[str]:
    """Return how much longer than the run the recipe trains; it may differ in nothing else that changes a step.

    Raises UserError if the run has nothing to resume, or another recipe or other data than the given one.
    """
    has_recipe = (run / RECIPE_FILE).is_file()
    checkpoints = checkpoints_of(run)
    if not checkpoints and _is_finished(run):
        raise UserError(f"{run}: is finished, and contains no checkpoint to continue from", _ANEW)
    if not checkpoints and not has_recipe:
        raise UserError(
            f"{run}: contains no run to resume", "to start one, leave --resume out (resume_from_checkpoint)"
        )
    if not has_recipe:
        raise UserError(
            f"{run}: contains checkpoints but no {RECIPE_FILE}, so its recipe is unknown",
            remedy="copy the file from where the run was started, or train into another train.output_dir",
        )
    changed = _changed_keys(recipe, run)
    longer = {key: changed.pop(key) for key in _LENGTH if key in changed and 0 < changed[key][0] < changed[key][1]}
    if changed:
        raise UserError(
            "\n  ".join([f"{run}: was started with another recipe", *map(_change, changed.items())]),
            remedy="resume with the original recipe (train.max_steps and num_train_epochs may be larger), or train "
            "into another train.output_dir",
        )
    refuse_other_source(recipe, run)
    return [_change(key) for key in longer.items()]


def _changed_keys(recipe: Recipe, run: Path) -> dict[str, tuple[Any, Any]]:
    """Return the value in the run and the recipe's, of each key that differs and changes a step."""
    before, now = (dict(flat(either.model_dump())) for either in (load_recipe(run / RECIPE_FILE), recipe))
    return {
        key: (before.get(key), now.get(key))
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key) and not key.startswith(_FREE_TO_CHANGE)
    }


def _change(changed: tuple[str, tuple[Any, Any]]) -> str:
    key, (before, now) = changed
    return f"{key}: {before!r} → {now!r}"


def keep_precision(recipe: Recipe) -> None:
    """Set `train.bf16`, where it is null, to that of the run in the folder: another machine would choose otherwise."""
    recipe_file = Path(recipe.train.output_dir) / RECIPE_FILE
    if recipe.train.bf16 is None and recipe_file.is_file():
        recipe.train.bf16 = load_recipe(recipe_file).train.bf16


def clear_run(run: Path) -> None:
    """Remove the files of an earlier training and its evaluations, and nothing else; say which before."""
    if left := list(dict.fromkeys(path for pattern in _LEFT_BY_TRAINING for path in run.glob(pattern))):
        warn(removal(run, left))
    for path in left:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def refuse_to_clear(model: str, data: str | None, run: Path) -> None:
    """Raise UserError if the folder to clear is no run, or contains the model or the data of the new one."""
    strangers = run.is_dir() and any(path.name != LOCK_FILE for path in run.iterdir())
    if strangers and not (run / RECIPE_FILE).is_file():
        raise UserError(
            f"{run}: is not a run folder (it contains no {RECIPE_FILE}), so --overwrite would not clear it",
            remedy="choose an empty folder as train.output_dir",
        )
    for key, value in (("model.name", model), ("data.train", data)):
        path = Path(value or "")
        if value and path.exists() and path.resolve().is_relative_to(run.resolve()):
            raise UserError(
                f"{key}={value!r}: is inside train.output_dir={str(run)!r}, which --overwrite would clear",
                remedy="choose another train.output_dir",
            )
