"""D2ETrainer: transformers' Trainer with an objective over the views of a sample.

Unusual here: the loss is a sum over answer tokens divided by the answer tokens of the *global* batch, so the
gradient does not depend on how a batch is cut into micro-batches, accumulation steps and processes.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import EarlyStoppingCallback, TrainerCallback
from transformers.integrations.liger import apply_liger_kernel
from transformers.trainer_callback import ProgressCallback
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from d2e_sft.config.recipe import D2ESection, Packing
from d2e_sft.data.chat_template import pad_id
from d2e_sft.model.compilation import compile_layers
from d2e_sft.model.device import LapTimer
from d2e_sft.model.micro_batch import model_inputs
from d2e_sft.model.packing_support import choose_layout, collator_for
from d2e_sft.model.token_budget import REPEATED, MicroBatchRows, StepCollator, TokenBudgetSteps, TokenCosts
from d2e_sft.objective.attach import attach_objective
from d2e_sft.objective.bias_model import FrozenCollator, numbered, states_of_bias_model
from d2e_sft.objective.metrics import ObjectiveMetrics
from d2e_sft.train.arguments.config import D2EConfig
from d2e_sft.train.arguments.inputs import Refiner, UserInputs, refined_by_rule
from d2e_sft.train.arguments.record import RecordRun
from d2e_sft.train.callbacks import SamplePredictions
from d2e_sft.train.checkpoints import AtomicCheckpoints
from d2e_sft.train.held_out import HeldOutEvaluation
from d2e_sft.train.probe import ReadingProbe
from d2e_sft.train.progress import LossLines
from d2e_sft.train.safeguards import ROWS, GuardedSteps, NumberedBatches, StepChecks
from d2e_sft.util.errors import UserError
from d2e_sft.util.terminal import warn

# Parts of the loop, and what their shares of its time are called in a log.
_SHARES = {
    "model": "time_in_model",
    "optimizer": "time_in_optimizer",
    "data": "time_in_data",
    "elsewhere": "time_elsewhere",
}


class _StepActions(TrainerCallback):
    """Logs and evaluates after the last step too, where logging_steps or eval_steps does not divide.

    Logs at a checkpoint, which does not hold the sums of a half-filled logging window.
    A resumed run takes its intervals from its arguments: the checkpoint's are those of the run before.
    """

    def __init__(self, trainer: D2ETrainer) -> None:
        self.trainer = trainer

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.trainer.token_steps is not None:
            self.trainer.token_steps.set_epoch(int(state.epoch or 0))

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.laps.enter("elsewhere")

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        state.logging_steps, state.eval_steps, state.save_steps = args.logging_steps, args.eval_steps, args.save_steps

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        ends = state.global_step >= state.max_steps
        control.should_log |= ends or control.should_save
        if ends:
            control.should_evaluate |= args.eval_strategy == IntervalStrategy.STEPS
        return control


class D2ETrainer(GuardedSteps, AtomicCheckpoints, HeldOutEvaluation):
    """transformers' Trainer for D²E-SFT and the other objectives over the views of a sample (PIPER paper, section 3).

        trainer = D2ETrainer("builtin:smollm2-135m-instruct", D2EConfig("runs/mine"), train_dataset=rows)
        trainer.train()
        trainer.save_model()

    Logs at each logging step, beside the Trainer's own values: the objective's terms (`ce`, `kl`, …, nats a token;
    `loss` is their sum, in which `kl` counts kl_weight times), `debiased_accuracy` and `plain_accuracy` (shares of
    answer tokens that the argmax as the model is decoded and that of the original view alone get right), `bias_share`
    (the imagined view's: how often the answer is guessed without the context; absent without that view),
    `sample_weight` (the mean of an answer token, where rows have weights: the loss is Σ weight · loss over the number
    of answer tokens), `alpha` (of training), `tokens_per_second` (tokens of all views, each counted whole, over all
    processes), `memory_gib` (the largest so far, of this device, on a CPU of this process) and where the time since
    the last log went, as shares: `time_in_model` (forward and backward), `time_in_optimizer` (clipping too),
    `time_in_data` (waiting for batches), `time_elsewhere` (logging, checkpoints, evaluation). With an `eval_dataset`
    the same of held-out rows, see `HeldOutEvaluation`.

    Args:
        model: a model of transformers, possibly in a PeftModel, or the name of one for `load_model`.
        args: a `D2EConfig`; transformers' own TrainingArguments are completed by its defaults.
        train_dataset, eval_dataset: rows with `question`, `answer` and `context` as `samples_of` takes them; or
            tokens, a column of prompt ids for each view of the objective, `answer` and, for one that treats the
            response form's tokens apart, `content`. Of held-out rows also a dict of several sets.
        probe_dataset: rows as these, or a file, with a column `subset` that says `aligned` or `conflict`: how many are
            answered right is logged before the first step and at each evaluation (see `ReadingProbe`), which without
            an `eval_strategy` is at the end of each epoch.
        processing_class: the tokenizer; None takes the model's own.
        peft_config: of an adapter that is trained in place of all weights.
        refiner: makes the refined contexts of samples without one; None makes none.
        d2e, packing, attention, micro_batch_tokens: in place of what `args` says; with `d2e`, `args` may be any
            TrainingArguments, and rows are tokens. `micro_batch_tokens` cuts a step's samples into micro-batches of at
            most so many tokens as laid out, in place of micro-batches of as many samples; a step then has
            `per_device_train_batch_size` samples a process.
        options: further ones of transformers' Trainer (`callbacks`, `optimizers`, …).

    Raises:
        UserError: as `UserInputs.of`, `choose_layout` and `attach_objective`, or `micro_batch_tokens` beside gradient
            accumulation.
    """

    # The loss is normalised by the whole accumulated batch; the Trainer must not divide it again.
    loss_is_scaled_for_ga = True

    def __init__(
        self,
        model: Any = None,
        args: Any = None,
        *,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        peft_config: Any = None,
        probe_dataset: Any = None,
        refiner: Refiner | None = refined_by_rule,
        d2e: D2ESection | None = None,
        packing: Packing = "auto",
        attention: str | None = None,
        micro_batch_tokens: int | None = None,
        **options: Any,
    ) -> None:
        self.inputs: UserInputs | None = None
        rows = {"train_dataset": train_dataset, "eval_dataset": eval_dataset, "processing_class": processing_class}
        if d2e is None:
            args = D2EConfig("trainer_output") if args is None else D2EConfig.of(args)
            d2e, packing, attention = args.d2e, args.packing, args.attention
            micro_batch_tokens = args.micro_batch_tokens
            self.inputs = given = UserInputs.of(model, args, **rows, peft_config=peft_config, refiner=refiner)
            model = given.loaded.model
            rows = {
                "train_dataset": given.train_dataset,
                "eval_dataset": given.eval_dataset,
                "processing_class": given.loaded.tokenizer,
            }
        options |= rows
        if micro_batch_tokens is not None and args.gradient_accumulation_steps > 1:
            raise UserError(
                f"micro_batch_tokens={micro_batch_tokens} with gradient_accumulation_steps="
                f"{args.gradient_accumulation_steps}: how many micro-batches a step has follows from their tokens",
                remedy="set gradient_accumulation_steps=1, and per_device_train_batch_size to the samples of a step",
            )
        with self._probed_alone(probe_dataset, args, eval_dataset):
            super().__init__(model, args, **options)
        _keep_sums_in_float32(self.accelerator.state)
        if self.args.use_liger_kernel:
            _apply_liger(self.model, self.args)
        # Now that the model is on its device.
        with self.compute_loss_context_manager():
            self.layout = choose_layout(self.model, d2e, packing, attention)
        tokenizer = options.get("processing_class")
        padding = pad_id(tokenizer) if tokenizer else 0
        if options.get("data_collator") is None:
            self.data_collator = collator_for(self.layout, d2e, self.model.config, padding)
        objective = attach_objective(self.model, d2e, through_logits=self.layout.through_logits)
        if d2e.frozen_views:
            self._keep_frozen_views(d2e, padding, options.get("train_dataset"), options.get("eval_dataset"))
        elif hasattr(options.get("train_dataset"), "__len__"):
            self.train_dataset = numbered(options["train_dataset"])
        self.data_collator = NumberedBatches(self.data_collator)
        self.d2e = d2e
        self.term_weights = objective.weights
        self.micro_batch_tokens = micro_batch_tokens
        self.token_steps: TokenBudgetSteps | None = None
        self.laps = LapTimer(self.args.device)
        self.add_callback(_StepActions(self))
        self.add_callback(StepChecks(self))
        # Makes the Trainer count the labels of the global batch, for any model class; ours are not shifted.
        self.model_accepts_loss_kwargs = True
        self._loss_shifts_labels = False
        self._metrics = ObjectiveMetrics(d2e, self.term_weights, self.args.device)
        self._metrics_start: float | None = None  # seconds of training, evaluations left out
        if any(type(callback) is ProgressCallback for callback in self.callback_handler.callbacks):
            self.remove_callback(ProgressCallback)
            self.add_callback(LossLines)
        if getattr(self.args, "early_stopping_patience", None):
            patience, threshold = self.args.early_stopping_patience, self.args.early_stopping_threshold
            self.add_callback(EarlyStoppingCallback(patience, threshold))
        if getattr(self.args, "compile_layers", False):
            compile_layers(self.model)
        if self.inputs is not None and self.inputs.training is not None:
            self._record(train_dataset, eval_dataset, probe_dataset)

    @contextmanager
    def _probed_alone(self, probed: Any, args: Any, held_out: Any) -> Iterator[None]:
        """Evaluations of a probe without held-out rows, which transformers would refuse as it is set up."""
        if probed is None:
            yield
            return
        if self.inputs is None or self.inputs.training is None:
            raise UserError(
                "probe_dataset: its rows are worded as those of training are, and these came as tokens",
                remedy="give train_dataset as rows with `question`, `answer` and `context`, and no `d2e`",
            )
        asked = args.eval_strategy
        if held_out is None:
            args.eval_strategy = IntervalStrategy.NO
        yield
        args.eval_strategy = IntervalStrategy.EPOCH if asked == IntervalStrategy.NO else asked

    def _record(self, rows: Any, held_out: Any, probed: Any) -> None:
        """Keep with the model what it was trained on and how; decode held-out samples, and probe, at evaluations."""
        assert self.inputs is not None
        kept = RecordRun(self, self.inputs, rows, held_out, probed)
        self.add_callback(kept)
        assert self.inputs.training is not None
        self.sample_names = [f"{sample.id} of {sample.dataset}" for sample in self.inputs.training.samples]
        if self.inputs.held_out is not None and kept.recipe.train.sample_predictions:
            self.measures = [SamplePredictions(self, kept.recipe, self.inputs.held_out.samples).measure]
        if probed is not None:
            probe = ReadingProbe(self, kept.recipe, kept.probe_samples())
            self.add_callback(probe)
            self.measures = [*self.measures, probe.measure]

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """As `HeldOutEvaluation` has it, also of rows that are not tokens yet."""
        if self.inputs is not None and eval_dataset is not None and not isinstance(eval_dataset, str):
            eval_dataset = self.inputs.tokens(eval_dataset, "eval_dataset")
        return super().get_eval_dataloader(eval_dataset)

    def _keep_frozen_views(self, d2e: D2ESection, padding: int, rows: Any, held_out: Any) -> None:
        self.train_dataset = None if rows is None else numbered(rows)
        self.eval_dataset = None if held_out is None else numbered(held_out, len(rows) if rows is not None else 0)
        given = [row for dataset in (rows, held_out) if dataset is not None for row in dataset]
        with self.compute_loss_context_manager():
            states = states_of_bias_model(
                self.model,
                d2e,
                self.layout,
                given,
                pad_token_id=padding,
                batch_size=self.args.per_device_eval_batch_size,
            )
        self.data_collator = FrozenCollator(self.data_collator, states)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """The objective on one micro-batch, as its share of the global batch's mean over answer tokens."""
        if model.training and self._metrics_start is None:
            self._metrics_start = self._seconds()
        repeated = inputs.pop(REPEATED, False)
        inputs.pop(ROWS, None)
        rows = model_inputs(inputs)
        targets = rows["targets"]
        sums = model(**rows, view_accuracy=not model.training or self._logs_after_this_step())
        if num_items_in_batch is None:  # a call outside the training loop: the micro-batch is all there is
            scale = torch.tensor(1.0 / len(targets), device=targets.device)
        else:  # gradients are averaged over processes, the count is summed over them
            scale = self.accelerator.num_processes / torch.as_tensor(num_items_in_batch, device=targets.device)
        if repeated:
            scale = torch.zeros_like(scale)
        elif model.training:
            self._metrics.update(sums, targets, inputs["view_tokens"], scale, rows.get("weights"))
        else:
            self.update_held_out(sums, targets, inputs["view_tokens"], rows.get("weights"))
        scaled = sums["loss"] * scale
        return (scaled, {}) if return_outputs else scaled

    def get_train_dataloader(self) -> DataLoader[Any]:
        """As transformers' own, or with `micro_batch_tokens` a loader of whole steps, cut into micro-batches."""
        if self.micro_batch_tokens is None:
            return super().get_train_dataloader()
        if self.train_dataset is None:
            raise ValueError("training needs rows: pass train_dataset to the trainer")
        args, accelerator = self.args, self.accelerator
        costs = TokenCosts.of(self.train_dataset, self.layout, self.d2e.step_views)
        alone = sum(costs.of_micro_batch([i]) > self.micro_batch_tokens for i in range(len(costs.tokens)))
        if alone and accelerator.is_main_process:
            warn(
                f"{alone} of {len(costs.tokens)} samples have more than micro_batch_tokens={self.micro_batch_tokens} "
                "tokens; each of them is a micro-batch by itself"
            )
        self.token_steps = TokenBudgetSteps(
            costs,
            args.per_device_train_batch_size * accelerator.num_processes,
            self.micro_batch_tokens,
            seed=args.seed if args.data_seed is None else args.data_seed,
            rank=accelerator.process_index,
            processes=accelerator.num_processes,
        )
        return DataLoader(
            MicroBatchRows(self.train_dataset),
            batch_sampler=self.token_steps,
            collate_fn=StepCollator(self.data_collator),
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
            # Of its own: without one an iteration draws from the global generator, as dropout does.
            generator=torch.Generator(),
        )

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """As transformers' own; the time that it takes is told apart."""
        self.laps.enter("data")
        batches = super().get_batch_samples(epoch_iterator, num_batches, device)
        self.laps.enter("elsewhere")
        return batches

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Forward and backward of a micro-batch, or of all micro-batches of a step."""
        self.laps.enter("model")
        parts = inputs.get("micro_batches", [inputs])
        losses = []
        for i, part in enumerate(parts):
            last = i == len(parts) - 1
            if len(parts) > 1:  # gradients are exchanged once a step
                self.accelerator.gradient_state._set_sync_gradients(last)
            wait = self.accelerator.no_sync(model) if not last and not self.is_deepspeed_enabled else nullcontext()
            with wait:
                losses.append(super().training_step(model, part, num_items_in_batch))
        self.laps.enter("optimizer")
        return torch.stack(losses).sum()

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """As transformers counts them, over the micro-batches of a step."""
        return sum(super(D2ETrainer, self).floating_point_ops(part) for part in inputs.get("micro_batches", [inputs]))

    def _logs_after_this_step(self) -> bool:
        """Whether the step under way ends with a log; True where that is decided by epochs."""
        args, state, step = self.args, self.state, self.state.global_step + 1
        if args.logging_strategy != IntervalStrategy.STEPS or args.save_strategy == SaveStrategy.EPOCH:
            return True
        at_save = args.save_strategy == SaveStrategy.STEPS and state.save_steps > 0 and step % state.save_steps == 0
        first = step == 1 and args.logging_first_step
        return first or at_save or step % state.logging_steps == 0 or step >= state.max_steps

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the objective's parts, averaged since the last log and over processes."""
        if "loss" in logs:
            values, tokens = self._metrics.compute(self.accelerator)
            seconds = self._seconds() - (self._metrics_start or 0.0)
            self._metrics_start = None
            logs |= {
                **values,
                "alpha": self.d2e.effective_alpha,
                "tokens_per_second": round(tokens / seconds, 1),
                "memory_gib": round(_largest_memory(self.args.device) / 2**30, 3),
                **{_SHARES[part]: round(share, 4) for part, share in self.laps.shares().items()},
            }
        super().log(logs, start_time)

    def _seconds(self) -> float:
        return time.perf_counter() - self.evaluation_seconds


def _largest_memory(device: torch.device) -> int:
    """Bytes: of an accelerator's allocator, or of the process, as the system counts them."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _apply_liger(model: nn.Module, args: Any) -> None:
    """Liger's kernels but those of the loss, now: whether packed rows are exact with them is asked next."""
    losses = {"cross_entropy": False, "fused_linear_cross_entropy": False}
    apply_liger_kernel(model, {**(args.liger_kernel_config or {}), **losses})
    args.use_liger_kernel = False  # else training would apply them again, with its own choice


def _keep_sums_in_float32(state: Any) -> None:
    """FSDP2 casts what the model returns to the policy's output dtype: here the sums of the loss, not logits."""
    plugin: Any = getattr(state, "fsdp_plugin", None)
    policy = getattr(plugin, "mixed_precision_policy", None)
    if policy is not None and getattr(plugin, "fsdp_version", 1) == 2:
        plugin.mixed_precision_policy = replace(policy, output_dtype=torch.float32)
