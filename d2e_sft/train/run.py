"""Training from a recipe, on one process or many: `d2e train`, or `accelerate launch -m d2e_sft.train RECIPE`.

Checks come before imports of torch and transformers, so a mistake is reported at once.
"""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from d2e_sft.config.objectives import BASE
from d2e_sft.config.recipe import Recipe
from d2e_sft.model.storage.hub import check_model
from d2e_sft.train.checks import check_recipe, trackers
from d2e_sft.train.run_folder import check_folder, keep_precision, what_is_kept
from d2e_sft.train.samples import read_all
from d2e_sft.util.locks import file_lock
from d2e_sft.util.signals import on_sigterm
from d2e_sft.util.startup import preload

InMain = Callable[[Callable[[], Any]], Any]


def train_recipe(recipe: Recipe, *, resume: bool = False, overwrite: bool = False) -> Path:
    """Train, and leave model, tokenizer, resolved recipe and log history in the run folder, which is returned.

    Args:
        resume: Continue from the run folder's last whole checkpoint, bit for bit like an uninterrupted run.
        overwrite: Remove the run in the folder, and start over.

    Raises:
        UserError: Bad data, an unknown model, a run folder in use, or a loss that is NaN. Also a resumed run with
            another recipe or other data, or a batch that the processes cannot share.
        ProcessError: Too little memory or disk space.
        SystemExit: With status 75 at SIGTERM, after a checkpoint if training had started.
    """
    run, processes = Path(recipe.train.output_dir), int(os.environ.get("WORLD_SIZE", "1"))
    in_main = _join(processes)
    before_it_starts = f"--resume continues {run}" if resume else "nothing was written; the same command starts again"
    with (
        on_sigterm(before_it_starts) as termination,
        file_lock(run, "another training", "wait for its end, or choose another train.output_dir", in_main),
        trackers(recipe.train.report_to, recipe.train.project),
    ):
        check_run(recipe, processes, resume=resume, overwrite=overwrite, in_main=in_main)
        samples = read_all(recipe)
        preload("transformers.trainer")
        from d2e_sft.train.trainer import D2ETrainer

        trainer = D2ETrainer.from_recipe(recipe, samples, overwrite=overwrite)
        trainer.guard.termination, termination.deferred = termination, True
        try:
            trainer.train(resume_from_checkpoint=resume)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(what_is_kept(run)) from None
        if trainer.guard.stopped:
            termination.end(what_is_kept(run))
        trainer.save_model()
        trainer.save_state()  # marks the run as finished, so it comes after the model
        # A launcher ends all processes when one fails, even one that fails as it exits.
        trainer.accelerator.wait_for_everyone()
    return run


def check_run(
    recipe: Recipe, processes: int, *, resume: bool, overwrite: bool, in_main: InMain = lambda decide: decide()
) -> None:
    """Check the recipe, its files and models, and in the main process its folder; UserError if one does not fit."""
    if resume:
        keep_precision(recipe)
    check_recipe(recipe, processes)
    for name in {recipe.d2e.other_model, recipe.model.name} - {None, BASE}:
        check_model(str(name))
    in_main(lambda: check_folder(recipe, resume=resume, overwrite=overwrite))


def _join(processes: int) -> InMain:
    """Join the launched processes; the result calls a function in the main one and returns its result to all."""
    if processes == 1:
        return lambda decide: decide()
    preload("transformers.trainer")
    from d2e_sft.util.distributed import broadcast_from_main, process_state

    return partial(broadcast_from_main, process_state())
