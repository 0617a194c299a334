"""The run folder of a training from Python: checked, continued or cleared by the rules of `d2e train`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from d2e_sft.config.recipe import RECIPE_FILE
from d2e_sft.model.storage.seal import SEAL_FILE, check_seal
from d2e_sft.train.data_record import check_resumed_data
from d2e_sft.train.run_folder import (
    check_resumable,
    clear_run,
    contains_run,
    refuse_run,
    refuse_to_clear,
    resuming_point,
)
from d2e_sft.train.states import check_states
from d2e_sft.util.distributed import broadcast_from_main
from d2e_sft.util.errors import UserError


def prepare_folder(trainer: Any, resume: str | bool | None) -> str | None:
    """Check that a training may start in its folder, or clear it; return the checkpoint to resume from.

    Args:
        resume: as `resume_from_checkpoint` of transformers' `train`.

    Raises:
        UserError: the folder contains a run that is neither continued nor cleared. Or the checkpoint is damaged, or
            belongs to a run with another recipe or other rows.
    """
    return broadcast_from_main(trainer.accelerator, lambda: _prepared(trainer, resume))


def _prepared(trainer: Any, resume: str | bool | None) -> str | None:
    run = Path(trainer.args.output_dir)
    source = run if resume is True or not resume else Path(resume).parent
    if not resume or source.resolve() != run.resolve():
        _start(trainer, run)
    if not resume:
        return None
    with _files_now(trainer) as recipe:
        if recipe is not None and (resume is True or (source / RECIPE_FILE).is_file()):
            check_resumable(recipe, source)
            check_resumed_data(recipe, trainer.inputs.train_dataset, processes=trainer.args.world_size, run=source)
    if resume is True:
        found = resuming_point(run)
        return None if found is None else str(found)
    checkpoint = Path(resume)
    if not checkpoint.is_dir():
        raise UserError(
            f"resume_from_checkpoint={resume!r}: no such folder; expected a checkpoint-N",
            remedy="True takes the last whole checkpoint of output_dir",
        )
    if (checkpoint / SEAL_FILE).is_file():
        check_seal(checkpoint)
    check_states(checkpoint)
    return str(checkpoint)


def _start(trainer: Any, run: Path) -> None:
    """Clear the folder of an earlier run, if that is wanted, otherwise refuse it."""
    if not (trainer.args.overwrite_output_dir and contains_run(run)):
        refuse_run(run)
        return
    record = trainer.record
    refuse_to_clear(trainer.inputs.name, None if record is None else record.given_file, run)
    clear_run(run)


@contextmanager
def _files_now(trainer: Any) -> Iterator[Any]:
    """The run's recipe with the rows of now in its files; None without training rows."""
    if trainer.record is None:
        yield None
        return
    with trainer.record.files_aside() as recipe:
        yield recipe
