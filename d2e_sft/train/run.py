"""Training from a recipe, on one process or many: `d2e train`, or `accelerate launch -m d2e_sft.train RECIPE`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from accelerate import PartialState
from transformers import TrainingArguments, set_seed
from transformers.trainer_callback import ProgressCallback

from d2e_sft.config.recipe import Recipe, TrainSection
from d2e_sft.data.sample import BAD_ROWS_FILE, write_bad_rows
from d2e_sft.model.compilation import check_compiler, compile_layers
from d2e_sft.train.callbacks import RecordRecipe, SamplePredictions, prepare_trackers
from d2e_sft.train.checkpoints import remove_leftovers
from d2e_sft.train.data_record import record_data, tokens_digest
from d2e_sft.train.prepare import Prepared, check_recipe, held_out_rows, prepare, with_adapter
from d2e_sft.train.probe import ReadingProbe, probe_samples
from d2e_sft.train.progress import LossLines
from d2e_sft.train.rows import TokenRows, announce_rows
from d2e_sft.train.run_folder import clear_run, starting_point
from d2e_sft.train.trainer import D2ETrainer
from d2e_sft.util.distributed import asked_for, decided_by_main, process_state, same_everywhere
from d2e_sft.util.locks import only_one
from d2e_sft.util.signals import Termination, on_sigterm


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
    with on_sigterm(f"--resume goes on with {run}") as termination, _alone_in(run, state):
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
    prepare_trackers(recipe.train.report_to, recipe.train.project)
    accumulation = check_recipe(recipe, state.num_processes)
    # Each process measured what is fast, and all must train in the same.
    recipe.train.precision = decided_by_main(state, lambda: recipe.train.precision)
    checkpoint = decided_by_main(state, lambda: starting_point(recipe, resume=resume, overwrite=overwrite))
    # Before the model is loaded: under ZeRO-3 their existence makes transformers load it in shards.
    args = training_arguments(
        recipe.train, accumulation, processes=state.num_processes, evaluated=recipe.data.dev is not None
    )
    if recipe.train.compile:
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
        every = recipe.train.eval_steps or prepared.steps.per_epoch
        trainer.add_callback(ReadingProbe(trainer, recipe, probed, every))
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


def _trainer(recipe: Recipe, prepared: Prepared, held_out: TokenRows | None, args: TrainingArguments) -> D2ETrainer:
    # In steps also where epochs are meant: an epoch's own end comes after its last checkpoint, so a resumed run would
    # lack the evaluation.
    args.eval_steps = recipe.train.eval_steps or prepared.steps.per_epoch
    set_seed(recipe.train.seed)  # after loading, which may have drawn numbers: an adapter's start depends on it
    trainer = D2ETrainer(
        model=with_adapter(recipe, prepared.loaded),
        args=args,
        train_dataset=prepared.training.dataset,
        eval_dataset=held_out.dataset if held_out is not None else None,
        processing_class=prepared.loaded.tokenizer,
        d2e=recipe.d2e,
        packing=recipe.train.packing,
        attention=recipe.model.attention,
        micro_batch_tokens=recipe.train.micro_batch_tokens,
    )
    trainer.remove_callback(ProgressCallback)
    trainer.add_callback(LossLines)
    trainer.add_callback(RecordRecipe(recipe))
    if held_out is not None and recipe.train.sample_predictions:
        trainer.add_callback(SamplePredictions(trainer, recipe, held_out.samples))
    if recipe.train.compile:
        compile_layers(trainer.model)
    return trainer


def training_arguments(
    train: TrainSection, accumulation: int, *, processes: int = 1, evaluated: bool = False
) -> TrainingArguments:
    """transformers' TrainingArguments for a `train` section whose precision is resolved.

    Args:
        processes: of the run; with `micro_batch_tokens` each loads its share of a step at once.
        evaluated: there are held-out rows to evaluate on; the caller sets `eval_steps`.
    """
    on_cpu, deepspeed = not torch.accelerator.is_available(), asked_for("DEEPSPEED")
    # The recipe decides, not the launcher: TrainingArguments would take the launcher's precision over float32.
    os.environ["ACCELERATE_MIXED_PRECISION"] = {"bfloat16": "bf16", "float16": "fp16"}.get(train.precision, "no")
    args = TrainingArguments(
        output_dir=train.output_dir,
        seed=train.seed,
        data_seed=train.seed,
        num_train_epochs=train.epochs,
        max_steps=train.max_steps or -1,
        per_device_train_batch_size=(
            train.batch_size // processes if train.micro_batch_tokens else train.micro_batch_size
        ),
        gradient_accumulation_steps=accumulation,
        learning_rate=train.learning_rate,
        lr_scheduler_type=train.lr_scheduler,
        warmup_steps=train.warmup_ratio,
        weight_decay=train.weight_decay,
        optim=train.optim,
        max_grad_norm=train.max_grad_norm,
        bf16=train.precision == "bfloat16",
        fp16=train.precision == "float16",
        # TrainingArguments takes bfloat16 without an accelerator only when told that the CPU is meant; under DeepSpeed
        # that is not to be said (see process_state).
        use_cpu=on_cpu and not deepspeed,
        ddp_backend="gloo" if on_cpu and deepspeed else None,
        dataloader_pin_memory=not on_cpu,
        activation_checkpointing=train.gradient_checkpointing,
        logging_steps=train.logging_steps,
        logging_first_step=True,
        # A NaN must be seen, not replaced by the running mean; but in float16, where the scaler leaves its step out.
        logging_nan_inf_filter=train.precision == "float16",
        save_strategy="steps" if train.save_steps else "no",
        save_steps=train.save_steps or 500,
        save_total_limit=train.save_total_limit,
        eval_strategy="steps" if evaluated else "no",
        per_device_eval_batch_size=train.micro_batch_size,
        report_to=train.report_to or "none",
        project=train.project,
        run_name=Path(train.output_dir).name,
        # The batch holds views and answers, not the model's own columns.
        remove_unused_columns=False,
        disable_tqdm=False,
    )
    # One process drives one device: DataParallel would cut a batch across its views.
    args._n_gpu = min(args.n_gpu, 1)
    return args


def _announce(recipe: Recipe, samples: int, processes: int) -> None:
    train, objective = recipe.train, recipe.d2e.objective
    named = "" if objective == "d2e" else f"objective: {objective}; "
    print(
        f"{named}views: {', '.join(recipe.d2e.views)}; α={recipe.d2e.effective_alpha:g}; batch {train.batch_size} on "
        f"{processes} process{'es' if processes > 1 else ''}; {train.precision}",
        flush=True,
    )
    at_once = train.micro_batch_size * processes
    if processes > 1 and not train.micro_batch_tokens and samples % at_once:
        print(
            f"warning: {samples} samples are not a multiple of {at_once} (micro-batch × processes): the last batch of "
            f"an epoch repeats {at_once - samples % at_once} samples of its beginning",
            flush=True,
        )
