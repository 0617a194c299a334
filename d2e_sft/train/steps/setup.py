"""Parts of a `D2ETrainer`: its model and rows, its callbacks, and the values of its logs."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from transformers import EarlyStoppingCallback, TrainerCallback
from transformers.integrations.liger import apply_liger_kernel
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from transformers.trainer_utils import IntervalStrategy

from d2e_sft.config.objectives import OBJECTIVES
from d2e_sft.data.chat_template import pad_id
from d2e_sft.model.compilation import compile_layers
from d2e_sft.model.packing_support import choose_layout, collator_for
from d2e_sft.objective.attach import attach_objective
from d2e_sft.objective.objectives import Objective
from d2e_sft.objective.reference import REFERENCE, Reference
from d2e_sft.train.arguments.record import RecordRun
from d2e_sft.train.checkpoints import WholeCheckpoints
from d2e_sft.train.evaluation.callbacks import SamplePredictions
from d2e_sft.train.evaluation.probe import ReadingProbe
from d2e_sft.train.rows import check_pairs
from d2e_sft.train.samples import of_both_subsets
from d2e_sft.train.steps.progress import LossLines
from d2e_sft.train.steps.safeguards import NUMBER, NumberedBatches
from d2e_sft.util.errors import UserError
from d2e_sft.util.terminal import filled, say


def prepare_model(trainer: Any, collator: Any) -> Objective:
    """Choose the layout for the model on its device, attach the objective, and number the rows.

    `collator` is the user's, None the layout's. Errors as in `choose_layout`, `attach_objective`, `Reference.of`.
    """
    args, model, d2e = trainer.args, trainer.model, trainer.d2e
    trainer.model_accepts_loss_kwargs = False  # answer tokens are counted in get_batch_samples
    keep_sums_in_float32(trainer.accelerator.state)
    if args.fp16 and args.device.type != "cuda":  # accelerate would compute in float32
        raise UserError("train.fp16=true: float16 needs CUDA", "use train.fp16=false for float32")
    if args.use_liger_kernel:  # before packing is checked for exactness
        losses = {"cross_entropy": False, "fused_linear_cross_entropy": False}
        apply_liger_kernel(model, {**(args.liger_kernel_config or {}), **losses})
        args.use_liger_kernel = False  # otherwise training would apply them again, with its own choice
    tokenizer = trainer.processing_class
    with trainer.compute_loss_context_manager():
        trainer.layout = layout = choose_layout(model, d2e, args.packing, args.attention)
    padding = pad_id(tokenizer) if tokenizer else 0
    trainer.data_collator = collator or collator_for(layout, d2e, model.config, padding)
    objective = attach_objective(model, d2e, through_logits=layout.through_logits)
    if d2e.prefers:
        add_reference(trainer, padding)
    if hasattr(trainer.train_dataset, "__len__"):
        trainer.train_dataset = with_column(trainer.train_dataset, NUMBER, range(len(trainer.train_dataset)))
    trainer.data_collator = NumberedBatches(trainer.data_collator)
    if args.compile_layers:
        compile_layers(model)
    return objective


def with_column(rows: Any, name: str, values: Sequence[Any]) -> Any:
    """Return the rows, a dataset or a list, with one more column."""
    if hasattr(rows, "add_column"):  # a datasets.Dataset
        return rows.add_column(name, list(values))
    return [{**row, name: value} for row, value in zip(rows, values, strict=True)]


def of_each_set(held_out: Any, change: Callable[[Any], Any]) -> Any:
    """Return changed held-out rows: None, one set, or a dict of several."""
    if isinstance(held_out, dict):
        return {name: change(rows) for name, rows in held_out.items()}
    return None if held_out is None else change(held_out)


def add_reference(trainer: Any, pad_token_id: int) -> None:
    """Add the reference's log-probabilities to the rows, if the objective needs them.

    UserError if no training row has a rejected answer, or as `Reference.of`.
    """
    args, d2e, rows = trainer.args, trainer.d2e, trainer.train_dataset
    if hasattr(rows, "__len__"):
        check_pairs(rows)
    if not d2e.needs_reference:
        return
    with trainer.compute_loss_context_manager():
        reference = Reference.of(d2e, trainer.model, trainer.layout, trainer.processing_class)
        precision = "bfloat16" if args.bf16 else "float16" if args.fp16 else "float32"
        options = {"pad_token_id": pad_token_id, "batch_size": args.per_device_eval_batch_size, "precision": precision}

        def referred(dataset: Any) -> Any:
            if not hasattr(dataset, "__len__"):
                return dataset
            return with_column(dataset, REFERENCE, reference.log_probabilities(d2e, dataset, **options))

        trainer.train_dataset = referred(rows)
        trainer.eval_dataset = of_each_set(trainer.eval_dataset, referred)


def add_callbacks(trainer: Any, checkpoints: WholeCheckpoints, record: RecordRun | None) -> None:
    """Add the callbacks of a training, and what its evaluations measure.

    Checks come after the callbacks that decide about logs and checkpoints, and the progress bar after what the
    beginning logs. Rows that are tokens are not decoded; without `record` there are no training rows.
    """
    for callback in (StepActions(trainer), trainer.guard, checkpoints, *([record] if record else [])):
        trainer.add_callback(callback)
    if any(type(callback) is ProgressCallback for callback in trainer.callback_handler.callbacks):
        trainer.remove_callback(ProgressCallback)
        trainer.add_callback(LossLines(trainer.held_out.own))
    if trainer.args.quiet:
        trainer.remove_callback(PrinterCallback)
    if trainer.args.early_stopping_patience is not None:
        patience, threshold = trainer.args.early_stopping_patience, trainer.args.early_stopping_threshold
        trainer.add_callback(EarlyStoppingCallback(patience, threshold))
    if record is None:
        return
    inputs, recipe = trainer.inputs, record.recipe
    if inputs.training is not None:
        trainer.guard.sample_names = [f"{sample.id} of {sample.dataset}" for sample in inputs.training.samples]
    if inputs.held_out is not None and recipe.train.sample_predictions:
        trainer.held_out.measures.append(SamplePredictions(trainer, recipe, inputs.held_out.samples).measure)
    if record.probe is not None:
        probe = ReadingProbe(trainer, recipe, of_both_subsets(record.probe, "probe_dataset"))
        trainer.add_callback(probe)
        trainer.held_out.measures.append(probe.measure)


class StepActions(TrainerCallback):
    """Logs and evaluates after the last step too, even if logging_steps or eval_steps does not divide it.

    Logs at a checkpoint, too, which does not hold the sums of a half-filled logging window. A resumed run takes its
    intervals from its arguments instead of the checkpoint. Names the objective as training begins.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.trainer.token_steps is not None:
            self.trainer.token_steps.set_epoch(int(state.epoch or 0))

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.laps.enter("elsewhere")

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        state.logging_steps, state.eval_steps, state.save_steps = args.logging_steps, args.eval_steps, args.save_steps
        if state.is_world_process_zero:
            chosen = self.trainer.d2e.objective
            others = ", ".join(name for name in OBJECTIVES if name != chosen)
            say(filled(f"objective: {chosen}; others: {others} (d2e.objective=NAME)"))
            if state.global_step:
                say(f"resumed after step {state.global_step:,} of {state.max_steps:,}")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        ends = state.global_step >= state.max_steps
        control.should_log |= ends or control.should_save
        if ends:
            control.should_evaluate |= args.eval_strategy == IntervalStrategy.STEPS
        return control


def logged_values(trainer: Any, values: Mapping[str, float], tokens_per_second: float) -> dict[str, float]:
    """The values that a log adds to the Trainer's own, with `values` of `ObjectiveMetrics` since the last one.

    - the objective's terms (`ce`, `kl`, …, nats per token; `loss` is their sum, with `kl` times kl_weight);
    - with pairs `preference`, their loss in nats, and by TRL's names `rewards/…` and `logps/…`: means over pairs;
    - `debiased_accuracy` and `plain_accuracy`: shares of answer tokens that the argmax gets right, as the model is
      decoded and by the original view only;
    - `bias_share`: the same by the imagined view, if the objective has it: answers guessed without the context;
    - `kl_rows`: the share of rows whose refined view differs from the original: the others add nothing to `kl`;
    - `alpha` of training, `tokens_per_second` (all views, each counted whole, over all processes), and `memory_gib`,
      the peak so far of this device, or of this process on a CPU;
    - `skipped_steps` in float16: how many steps the gradient scaler has skipped since the last log;
    - shares of the time: `time_in_model` (forward and backward), `time_in_optimizer` (clipping included),
      `time_in_data` (waiting for batches), `time_elsewhere` (logging, checkpoints, evaluation).
    """
    skipped = trainer.guard.skipped_since_log() if trainer.args.fp16 else None
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    if trainer.args.device.type == "cuda":
        memory = torch.cuda.max_memory_allocated(trainer.args.device)
    shares = trainer.laps.shares()  # part of the loop → its share
    return {
        **values,
        "alpha": trainer.d2e.effective_alpha,
        "tokens_per_second": round(tokens_per_second, 1),
        "memory_gib": round(memory / 2**30, 3),
        **({} if skipped is None else {"skipped_steps": skipped}),
        **{f"time_{'' if part == 'elsewhere' else 'in_'}{part}": round(share, 4) for part, share in shares.items()},
    }


def stopped_early(callbacks: Sequence[TrainerCallback]) -> bool:
    """Whether a resumed run had stopped for lack of improvement."""
    return any(
        isinstance(callback, EarlyStoppingCallback)
        and callback.early_stopping_patience_counter >= callback.early_stopping_patience
        for callback in callbacks
    )


def keep_sums_in_float32(state: Any) -> None:
    """Make FSDP2 return float32: it casts outputs to the policy's dtype, and ours are sums of losses, not logits."""
    plugin: Any = getattr(state, "fsdp_plugin", None)
    policy = getattr(plugin, "mixed_precision_policy", None)
    if policy is not None and getattr(plugin, "fsdp_version", 1) == 2:
        plugin.mixed_precision_policy = replace(policy, output_dtype=torch.float32)
