"""Whole checkpoints: sealed with checksums once complete, and verified before they are used.

Unusual here: a `checkpoint-N` folder counts only with `checksums.json`, which is written last. Older checkpoints are
removed after that, so a run that is killed at any moment keeps them. The checksums also reveal damage by the disk.
"""

from __future__ import annotations

import os
import pkgutil
import random
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import TrainerCallback, TrainerState
from transformers.trainer_pt_utils import safe_globals

from d2e_sft.config.objectives import BASE
from d2e_sft.config.recipe import RECIPE_FILE
from d2e_sft.model.storage.folder import portable_name, weights_folder
from d2e_sft.model.storage.seal import SEAL_FILE, FileSum, damage, seal, weight_sums
from d2e_sft.train.dry_run.memory import optimizer_bytes
from d2e_sft.train.run_folder import ASIDE, TRAINER_STATE, checkpoint_folders, checkpoints_of, step_of
from d2e_sft.util.errors import ProcessError, UserError, is_disk_full
from d2e_sft.util.files import sync
from d2e_sft.util.terminal import say

if TYPE_CHECKING:
    from d2e_sft.train.trainer import D2ETrainer

_LARGE = 1e9  # bytes of checkpoints that are worth a line
# Loaders recognise a model by these files, so they are moved in last.
_MODEL_MARKS = ("config.json", "adapter_config.json")
_DEEPSPEED = (
    "deepspeed.runtime.fp16.loss_scaler:DynamicLossScaler",
    "deepspeed.runtime.fp16.loss_scaler:LossScaler",
    "deepspeed.runtime.zero.config:ZeroStageEnum",
    "deepspeed.utils.tensor_fragment:fragment_address",
)


def seal_checkpoint(checkpoint: Path, depends_on: Mapping[str, Mapping[str, FileSum]]) -> None:
    """Sync every file of a complete checkpoint to disk, and write its checksums."""
    seal(checkpoint, (path for path in checkpoint.rglob("*") if path.is_file() and path.name != SEAL_FILE), depends_on)
    # A folder lists its files: unless it is synced too, a power cut can lose them.
    for folder in sorted((path for path in checkpoint.rglob("*") if path.is_dir()), reverse=True):
        sync(folder)
    sync(checkpoint)


def remove_leftovers(run: Path) -> None:
    """Remove what an interrupted save of the model left."""
    shutil.rmtree(run / ASIDE, ignore_errors=True)


def check_states(checkpoint: Path) -> None:
    """Load each state of a checkpoint as data: optimizer, schedule, random numbers. Nothing in them is run.

    They are pickles, which can contain code. transformers loads its own as data only; DeepSpeed runs what its pickles
    name, so these may name only its own classes of states. Raises UserError for a state of another kind.
    """
    patterns = (TRAINER_STATE, "optimizer.*", "scheduler.pt", "scaler.pt", "rng_state*.pth", "latest", "*/**/*.pt")
    for path in (path for pattern in patterns for path in sorted(checkpoint.glob(pattern))):
        try:
            _check_state(path, of_deepspeed=path.parent != checkpoint)
        except Exception as error:  # a file that anyone may have written: unpickling can raise anything
            reason = str(error).strip().split("\n")[0][:200] or type(error).__name__
            raise UserError(
                f"{path}: is not a state that `d2e train` wrote ({reason}); it was not loaded",
                remedy=f"if others gave you this run, do not use it; otherwise remove {checkpoint.name} to resume "
                "from an earlier checkpoint, or start over with --overwrite",
            ) from None


def _check_state(path: Path, *, of_deepspeed: bool) -> None:
    if path.name == TRAINER_STATE:
        if not isinstance(TrainerState.load_from_json(str(path)).global_step, int):
            raise ValueError("its global_step is not a number")
        return
    if path.name == "latest":  # names the folder of DeepSpeed's states
        if not re.fullmatch(r"global_step[0-9]+\s*", path.read_text(encoding="utf-8")):
            raise ValueError("it does not name a folder global_stepN")
        return
    classes = [pkgutil.resolve_name(name) for name in _DEEPSPEED] if of_deepspeed else []
    with safe_globals(), torch.serialization.safe_globals(classes):  # arrays of NumPy, too
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)  # reads no tensor
    if of_deepspeed:
        return
    expected = {"optimizer": {"state", "param_groups"}, "scheduler": {"last_epoch"}}.get(path.stem, set())
    if missing := expected - {*state}:
        raise ValueError(f"it has no {', '.join(sorted(missing))}")
    if path.stem.startswith("rng_state"):
        random.Random().setstate(state["python"])
        np.random.RandomState().set_state(state["numpy"])
        torch.Generator().set_state(state["cpu"])


class WholeCheckpoints(TrainerCallback):
    """Seals each checkpoint that the Trainer wrote, then removes surplus ones.

    The Trainer's own rotation must be off, since it removes old checkpoints before the new one is sealed. Several
    machines must share the run folder: the main process seals what all of them wrote. `keep` counts the newest and the
    best checkpoint; None keeps all.
    """

    def __init__(self, trainer: Any, keep: int | None) -> None:
        self.trainer, self.keep = trainer, keep
        self._start = 0  # the step that this training starts from

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Record the weights of other models before a step depends on them, and say what checkpoints take."""
        self._start, best = state.global_step, _place(args, state.best_global_step)
        if state.best_global_step and best.is_dir():  # the state of a moved run has the former place
            state.best_model_checkpoint = str(best)
        if args.should_save:
            _ = self.trainer.depends_on
        size = checkpoint_bytes(self.trainer.model, args)
        if state.is_world_process_zero and args.save_strategy != "no" and size * (self.keep or 1) > _LARGE:
            kept = f"the last {self.keep}" if self.keep else "all"
            say(f"each checkpoint takes about {size / 1e9:.1f} GB, {kept} kept (train.save_total_limit)")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Clear the place of the checkpoint to come, perhaps of a best model, of a damaged or interrupted one."""
        if control.should_save or control.should_evaluate:
            if args.should_save:
                _remove(_place(args, state.global_step))
            self.trainer.accelerator.wait_for_everyone()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Seal the new checkpoint; UserError if its weights are NaN or infinite, and nothing is left of it."""
        checkpoint = _place(args, state.global_step)
        self.trainer.accelerator.wait_for_everyone()  # each process writes its own part: random state, shards
        try:
            self.trainer.guard.check_weights()
        except UserError:
            if args.should_save:
                _remove(checkpoint)
            raise
        if args.should_save:
            _add_recipe(args, checkpoint)
            seal_checkpoint(checkpoint, self.trainer.depends_on)
            sync(checkpoint.parent)
            best = Path(state.best_model_checkpoint) if state.best_model_checkpoint else None
            _rotate(checkpoint, self._start, self.keep, best)
        self.trainer.accelerator.wait_for_everyone()


def checkpoint_bytes(model: Any, args: Any) -> int:
    """Return about how many bytes a checkpoint takes: weights, of an adapter its own, and optimiser state."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    saved = trained if hasattr(model, "peft_config") else model.parameters()
    states = [] if args.save_only_model else [optimizer_bytes(args.optim, parameter) for parameter in trained]
    return sum(states) + sum(parameter.numel() * parameter.element_size() for parameter in saved)


def other_models(trainer: D2ETrainer) -> dict[str, dict[str, FileSum]]:
    """Return the checksums of the models with a folder that results depend on: an adapter's base, a reference."""
    reference = trainer.recipe.d2e.other_model
    adapter = getattr(trainer.model, "peft_config", {}).get("default")
    names = [] if adapter is None else [portable_name(adapter.base_model_name_or_path or "")]
    if reference is not None:
        names.append(trainer.model_name if reference == BASE else reference)
    sums = {}
    for name in filter(None, names):
        path = Path(name).expanduser()
        with suppress(UserError):
            folder = weights_folder(name)
            if folder is not None:
                sums[str(path.resolve()) if path.is_dir() else name] = weight_sums(folder)
    return sums


@contextmanager
def explaining_full_disk(trainer: Any, run: Path) -> Iterator[None]:
    """Turn an error of a full disk into a ProcessError that says what is kept; remove what the failed save wrote."""
    try:
        yield
    except Exception as error:
        if not is_disk_full(error, run):
            raise
        remove_leftovers(run)
        for checkpoint in checkpoints_of(run, sealed=False):
            _remove(checkpoint)
        disk, reason = shutil.disk_usage(run), str(error).strip().split("\n")[0][:120]
        last = next((path.name for path in checkpoints_of(run)), "none yet")
        raise ProcessError(
            f"{run}: the disk is full, so step {trainer.state.global_step} could not be saved ({reason}); "
            f"{disk.free / 2**20:,.0f} of {disk.total / 2**20:,.0f} MiB are free now; the last checkpoint, {last}, "
            "is whole",
            remedy="make room, then resume; train.save_total_limit keeps fewer checkpoints",
        ) from error


def save_model_whole(trainer: Any, target: Path, write: Callable[[str], None]) -> None:
    """Write model and tokenizer aside and move them in; the file that makes the folder a model comes last.

    `write` writes into a folder, as `Trainer.save_model` does; all processes call it.
    """
    if trainer.args.should_save:
        remove_leftovers(target)
    trainer.accelerator.wait_for_everyone()
    write(str(target / ASIDE / "model"))
    trainer.accelerator.wait_for_everyone()
    if trainer.args.should_save:
        aside = target / ASIDE / "model"
        _add_recipe(trainer.args, aside)
        seal(aside, aside.iterdir(), trainer.depends_on)
        _move_model(aside, target)
        remove_leftovers(target)
    trainer.accelerator.wait_for_everyone()


def _place(args: Any, step: int | None) -> Path:
    return Path(args.output_dir) / f"checkpoint-{step}"


def _add_recipe(args: Any, folder: Path) -> None:
    """Copy the run's recipe to a model that is about to be sealed, so that α is known wherever the folder goes."""
    recipe = Path(args.output_dir) / RECIPE_FILE
    if recipe.is_file():
        shutil.copyfile(recipe, folder / RECIPE_FILE)


def _move_model(source: Path, target: Path) -> None:
    files = sorted(source.iterdir(), key=lambda path: (path.name in _MODEL_MARKS, path.name))
    for path in files:
        place = target / path.name
        if place.is_dir():
            shutil.rmtree(place)
        sync(path)
        os.replace(path, place)
    sync(target)


def _rotate(newest: Path, start: int, keep: int | None, best: Path | None) -> None:
    """Keep the checkpoints that were written last, and the best one.

    Those of later steps are older than those of a training that resumed at `start`. Damaged ones are removed.
    """
    folders = checkpoint_folders(newest.parent)
    later = folders[: folders.index(newest)]
    damaged = [path for path in later if damage(path, cached=True) is not None]
    earlier = [path for path in folders if path != newest and path not in damaged]
    earlier.sort(key=lambda path: start < step_of(path) < step_of(newest), reverse=True)
    if keep and best in earlier:
        earlier, keep = [folder for folder in earlier if folder != best], max(keep - 1, 1)
    for path in [*damaged, *(earlier[keep - 1 :] if keep else [])]:
        _remove(path)


def _remove(checkpoint: Path) -> None:
    """Remove the seal first, so that a kill in between leaves nothing that counts as a checkpoint."""
    (checkpoint / SEAL_FILE).unlink(missing_ok=True)
    shutil.rmtree(checkpoint, ignore_errors=True)
