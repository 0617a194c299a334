"""A training whose files and folder have been checked: model, tokens, trainer, and what it leaves."""

from __future__ import annotations

from pathlib import Path

from d2e_sft.config.recipe import Recipe
from d2e_sft.data.bad_rows import BAD_ROWS_FILE, write_bad_rows
from d2e_sft.model.compilation import check_compiler
from d2e_sft.train.arguments.config import D2EConfig
from d2e_sft.train.checkpoints import remove_leftovers
from d2e_sft.train.data_record import check_resumed_data, tokens_digest
from d2e_sft.train.prepare import adapter_config, load_on_all, settle_recipe
from d2e_sft.train.rows import read_rows
from d2e_sft.train.run_folder import clear_run, resuming_point, what_is_kept
from d2e_sft.train.samples import RunSamples
from d2e_sft.train.trainer import D2ETrainer
from d2e_sft.util.distributed import broadcast_from_main, process_state, same_everywhere
from d2e_sft.util.signals import Termination
from d2e_sft.util.terminal import say


def train(recipe: Recipe, samples: RunSamples, termination: Termination, *, resume: bool, overwrite: bool) -> None:
    """Train on the samples; arguments and errors are as for `train_recipe`, whose checks have passed."""
    state, run = process_state(), Path(recipe.train.output_dir)
    settle_recipe(recipe)
    # Machines may differ, and all processes must train in the same precision.
    recipe.train.bf16 = broadcast_from_main(state, lambda: recipe.train.bf16)
    checkpoint = broadcast_from_main(state, lambda: resuming_point(run)) if resume else None
    # Before the model is loaded: under ZeRO-3 the arguments make transformers load it in shards.
    args = D2EConfig.from_recipe(recipe)
    if recipe.train.compile_layers:
        check_compiler(state.device)
    loaded, shown = load_on_all(recipe, state), state.is_main_process
    training = read_rows(recipe, "training", loaded, progress=shown, read=samples.training)
    held_out = samples.held_out and read_rows(recipe, "dev", loaded, progress=shown, read=samples.held_out)
    dataset = training.dataset
    same_everywhere(state, "the training tokens", tokens_digest(dataset))
    if resume:
        broadcast_from_main(state, lambda: check_resumed_data(recipe, dataset, processes=state.num_processes))
    trainer = D2ETrainer(
        loaded.model,
        args,
        train_dataset=training,
        eval_dataset=held_out,
        probe_dataset=samples.probe,
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
        if resume and checkpoint is None:
            say(f"{run} has no complete checkpoint: training starts from the beginning")
    state.wait_for_everyone()
    trainer.guard.termination, termination.deferred = termination, True
    try:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(what_is_kept(run)) from None
    if trainer.guard.stopped:
        termination.end(kept=f"checkpoint-{trainer.state.global_step} is saved; ")
    trainer.save_model()
    trainer.save_state()  # marks the run as finished, so it comes after the model
    state.wait_for_everyone()  # a launcher ends all processes when one fails, even one that fails as it exits
