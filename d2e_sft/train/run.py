"""Training from a recipe, on one process or many: `d2e train`, or `accelerate launch -m d2e_sft.train RECIPE`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from accelerate import PartialState

from d2e_sft.config.recipe import Recipe
from d2e_sft.data.bad_rows import BAD_ROWS_FILE, write_bad_rows
from d2e_sft.model.compilation import check_compiler
from d2e_sft.train.arguments.config import D2EConfig
from d2e_sft.train.checkpoints import remove_leftovers
from d2e_sft.train.data_record import check_resumed_data, tokens_digest
from d2e_sft.train.evaluation.callbacks import trackers
from d2e_sft.train.evaluation.probe import probe_samples
from d2e_sft.train.prepare import adapter_config, check_recipe, load_on_all
from d2e_sft.train.rows import read_rows
from d2e_sft.train.run_folder import clear_run, keep_precision, starting_point
from d2e_sft.train.trainer import D2ETrainer
from d2e_sft.util.distributed import decided_by_main, process_state, same_everywhere
from d2e_sft.util.locks import only_one
from d2e_sft.util.signals import Termination, on_sigterm


def train_recipe(recipe: Recipe, *, resume: bool = False, overwrite: bool = False) -> Path:
    """Train, and leave model, tokenizer, resolved recipe and log history in the run folder.

    Args:
        resume: continue from the run folder's last whole checkpoint, bit for bit like an uninterrupted run.
        overwrite: remove the run in the folder, and start over.

    Returns:
        the run folder.

    Raises:
        UserError: bad data, an unknown model, a run folder in use, or a loss that is NaN. Also a resumed run with
            another recipe or other data, or a batch that the processes cannot share.
        ProcessError: too little memory or disk space.
        SystemExit: with status 75 at SIGTERM, after a checkpoint if training had started.
    """
    state, run = process_state(), Path(recipe.train.output_dir)
    remedy = "wait for its end, or choose another train.output_dir"
    with (
        on_sigterm(f"--resume continues {run}") as termination,
        only_one(run, "another training", remedy, partial(decided_by_main, state)),
        trackers(recipe.train.report_to, recipe.train.project),
    ):
        return _train(recipe, state, termination, resume=resume, overwrite=overwrite)


def _train(recipe: Recipe, state: PartialState, termination: Termination, *, resume: bool, overwrite: bool) -> Path:
    if resume:
        keep_precision(recipe)
    check_recipe(recipe, state.num_processes)
    # Machines may differ, and all processes must train in the same precision.
    recipe.train.bf16 = decided_by_main(state, lambda: recipe.train.bf16)
    checkpoint = decided_by_main(state, lambda: starting_point(recipe, resume=resume, overwrite=overwrite))
    # Before the model is loaded: under ZeRO-3 the arguments make transformers load it in shards.
    args = D2EConfig.from_recipe(recipe)
    if recipe.train.compile_layers:
        check_compiler(state.device)
    loaded = load_on_all(recipe, state)
    training = read_rows(recipe, "training", loaded, progress=state.is_main_process)
    held_out = read_rows(recipe, "dev", loaded, progress=state.is_main_process) if recipe.data.dev else None
    probed = probe_samples(recipe) if recipe.data.probe is not None else None
    dataset, run = training.dataset, Path(recipe.train.output_dir)
    same_everywhere(state, "the training tokens", tokens_digest(dataset))
    if resume:
        decided_by_main(state, lambda: check_resumed_data(recipe, dataset, processes=state.num_processes))
    trainer = D2ETrainer(
        loaded.model,
        args,
        train_dataset=training,
        eval_dataset=held_out,
        probe_dataset=probed,
        processing_class=loaded.tokenizer,
        peft_config=adapter_config(recipe),
        recipe=recipe,
    )
    if state.is_main_process:
        # Only now: every check has passed, and until here nothing in the run folder was touched.
        if overwrite:
            clear_run(run)
        remove_leftovers(run)
        write_bad_rows([*training.bad_rows, *(held_out.bad_rows if held_out is not None else [])], run / BAD_ROWS_FILE)
    state.wait_for_everyone()
    trainer.guard.termination, termination.deferred = termination, True
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    if trainer.guard.stopped:
        termination.end(kept=f"checkpoint-{trainer.state.global_step} is saved; ")
    trainer.save_model()
    trainer.save_state()  # marks the run as finished, so it comes after the model
    state.wait_for_everyone()  # a launcher ends all processes when one fails, even one that fails as it exits
    return run
