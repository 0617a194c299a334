"""Training from a recipe, on one process or many: `d2e train`, or `accelerate launch -m d2e_sft.train RECIPE`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from accelerate import PartialState
from transformers import set_seed
from transformers.trainer_utils import IntervalStrategy

from d2e_sft.config.recipe import Recipe
from d2e_sft.data.sample import BAD_ROWS_FILE, write_bad_rows
from d2e_sft.model.compilation import check_compiler
from d2e_sft.train.arguments.config import D2EConfig
from d2e_sft.train.callbacks import RecordRecipe, SamplePredictions, trackers
from d2e_sft.train.checkpoints import remove_leftovers
from d2e_sft.train.data_record import record_data, tokens_digest
from d2e_sft.train.prepare import Prepared, check_recipe, held_out_rows, prepare, with_adapter
from d2e_sft.train.probe import ReadingProbe, probe_samples
from d2e_sft.train.rows import TokenRows, announce_rows
from d2e_sft.train.run_folder import clear_run, starting_point
from d2e_sft.train.trainer import D2ETrainer
from d2e_sft.util.distributed import decided_by_main, process_state, same_everywhere
from d2e_sft.util.locks import only_one
from d2e_sft.util.signals import Termination, on_sigterm
from d2e_sft.util.terminal import warn


def train_recipe(recipe: Recipe, *, resume: bool = False, overwrite: bool = False) -> Path:
    """Train, and leave model, tokenizer, resolved recipe and log history in the run folder.

    Args:
        resume: continue from the run folder's last whole checkpoint, step for step as if it had not stopped.
        overwrite: train anew into a run folder that already holds a run, after removing that one.

    Returns:
        the run folder.

    Raises:
        UserError: bad data, an unknown model, a run folder that is already used, a resumed run that was begun
            with another recipe or other data, a batch size that the number of processes does not divide, another
            training at work in the folder, a loss that is no number, or too little memory.
        SystemExit: with status 75 at SIGTERM, after a checkpoint where training had begun.
    """
    state, run = process_state(), Path(recipe.train.output_dir)
    with (
        on_sigterm(f"--resume goes on with {run}") as termination,
        _alone_in(run, state),
        trackers(recipe.train.report_to, recipe.train.project),
    ):
        return _train(recipe, state, termination, resume=resume, overwrite=overwrite)


@contextmanager
def _alone_in(run: Path, state: PartialState) -> Iterator[None]:
    """Hold the run folder's lock, in the main process, for all of them."""
    with ExitStack() as held:

        def enter() -> None:
            held.enter_context(
                only_one(run, "another training", "wait for its end, or choose another train.output_dir")
            )

        decided_by_main(state, enter)
        yield


def _train(recipe: Recipe, state: PartialState, termination: Termination, *, resume: bool, overwrite: bool) -> Path:
    check_recipe(recipe, state.num_processes)
    # Each process measured what is fast, and all must train in the same.
    recipe.train.bf16 = decided_by_main(state, lambda: recipe.train.bf16)
    checkpoint = decided_by_main(state, lambda: starting_point(recipe, resume=resume, overwrite=overwrite))
    # Before the model is loaded: under ZeRO-3 their existence makes transformers load it in shards.
    args = D2EConfig.from_recipe(recipe)
    if recipe.train.compile_layers:
        check_compiler(state.device)
    prepared = prepare(recipe, state, state.num_processes)
    if state.is_main_process:
        announce_rows(recipe, "training", prepared.training)
    held_out = held_out_rows(recipe, prepared.loaded, progress=state.is_main_process)
    if held_out is not None and state.is_main_process:
        announce_rows(recipe, "dev", held_out)
    probed = probe_samples(recipe) if recipe.data.probe is not None else []
    dataset, run = prepared.training.dataset, Path(recipe.train.output_dir)
    same_everywhere(state, "the training tokens", tokens_digest(dataset))
    record = decided_by_main(state, lambda: record_data(recipe, dataset, processes=state.num_processes, resume=resume))
    trainer = _trainer(recipe, prepared, held_out, args)
    if probed:
        probe = ReadingProbe(trainer, recipe, probed)
        trainer.add_callback(probe)
        trainer.measures = [*trainer.measures, probe.measure]
        trainer.args.eval_strategy = IntervalStrategy.STEPS
    if state.is_main_process:
        # Only now: whatever was wrong with the call has been said, and nothing was touched for it.
        if overwrite:
            clear_run(run)
        remove_leftovers(run)
        record.save(run)
        recipe.save(run)
        bad_rows = [*prepared.training.bad_rows, *(held_out.bad_rows if held_out is not None else [])]
        write_bad_rows(bad_rows, run / BAD_ROWS_FILE)
        _announce(recipe, len(dataset), state.num_processes)
        if probed:
            print(f"probe: {len(probed)} samples of {recipe.data.probe}", flush=True)
        print(trainer.layout.describe(), flush=True)
    state.wait_for_everyone()
    trainer.sample_names = [f"{sample.id} of {sample.dataset}" for sample in prepared.training.samples]
    trainer.termination, termination.deferred = termination, True
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    if trainer.stopped:
        termination.end(kept=f"checkpoint-{trainer.state.global_step} is saved; ")
    trainer.save_model()
    trainer.save_state()
    state.wait_for_everyone()  # a launcher ends all processes when one fails, even one that fails as it exits
    return run


def _trainer(recipe: Recipe, prepared: Prepared, held_out: TokenRows | None, args: D2EConfig) -> D2ETrainer:
    # In steps also where epochs are meant: an epoch's own end comes after its last checkpoint, so a resumed run would
    # lack the evaluation.
    args.eval_steps = recipe.train.eval_steps or prepared.steps.per_epoch
    # The Trainer refuses to evaluate without a dataset; the probe, which needs none, comes later.
    args.eval_strategy = IntervalStrategy.NO if held_out is None else IntervalStrategy.STEPS
    set_seed(recipe.train.seed)  # after loading, which may have drawn numbers: an adapter's start depends on it
    trainer = D2ETrainer(
        model=with_adapter(recipe, prepared.loaded),
        args=args,
        train_dataset=prepared.training.dataset,
        eval_dataset=held_out.dataset if held_out is not None else None,
        processing_class=prepared.loaded.tokenizer,
    )
    trainer.add_callback(RecordRecipe(recipe))
    if held_out is not None and recipe.train.sample_predictions:
        trainer.measures = [SamplePredictions(trainer, recipe, held_out.samples).measure]
    return trainer


def _announce(recipe: Recipe, samples: int, processes: int) -> None:
    train, objective = recipe.train, recipe.d2e.objective
    named = "" if objective == "d2e" else f"objective: {objective}; "
    print(
        f"{named}views: {', '.join(recipe.d2e.views)}; α={recipe.d2e.effective_alpha:g}; batch {train.batch_size} on "
        f"{processes} process{'es' if processes > 1 else ''}; {train.precision}",
        flush=True,
    )
    at_once = train.per_device_train_batch_size * processes
    if processes > 1 and not train.micro_batch_tokens and samples % at_once:
        warn(
            f"{samples} samples are not a multiple of {at_once} (micro-batch × processes): the last batch of an epoch "
            f"repeats {at_once - samples % at_once} samples of its beginning"
        )
