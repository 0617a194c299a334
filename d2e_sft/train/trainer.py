"""D2ETrainer: transformers' Trainer with an objective over the views of a sample.

Unusual here: the loss is a sum over answer tokens divided by the answer tokens of the *global* batch, so the
gradient does not depend on how a batch is cut into micro-batches, accumulation steps and processes.
"""

from __future__ import annotations

import resource
import sys
import time
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from d2e_sft.config.recipe import D2ESection, Packing
from d2e_sft.data.chat_template import pad_id
from d2e_sft.model.micro_batch import model_inputs
from d2e_sft.model.packing_support import choose_layout, collator_for
from d2e_sft.objective.attach import attach_objective
from d2e_sft.objective.frozen import FrozenCollator, numbered, states_before_training
from d2e_sft.objective.metrics import ObjectiveMetrics
from d2e_sft.train.checkpoints import AtomicCheckpoints
from d2e_sft.train.held_out import HeldOutEvaluation


class _StepActions(TrainerCallback):
    """Logs and evaluates after the last step too, where logging_steps or eval_steps does not divide.

    Logs at a checkpoint, which does not hold the sums of a half-filled logging window.
    A resumed run takes its intervals from its arguments: the checkpoint's are those of the run before.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        state.logging_steps, state.eval_steps, state.save_steps = args.logging_steps, args.eval_steps, args.save_steps

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        ends = state.global_step >= state.max_steps
        control.should_log |= ends or control.should_save
        if ends:
            control.should_evaluate |= args.eval_strategy == IntervalStrategy.STEPS
        return control


class D2ETrainer(AtomicCheckpoints, HeldOutEvaluation):
    """Trains on rows of token views by the objective that `d2e` names (PIPER paper, section 3, where it names none).

    Logs at each logging step, beside the Trainer's own values: the objective's terms (`ce`, `kl`, …, nats a token;
    `loss` is their sum, in which `kl` counts kl_weight times), `debiased_accuracy` and `plain_accuracy` (shares of
    answer tokens that the argmax as the model is decoded and that of the original view alone get right), `bias_share`
    (the imagined view's: how often the answer is guessed without the context; absent without that view), `alpha` (of
    training), `tokens_per_second` (tokens of all views, each counted whole, over all processes) and `memory_gib` (the
    largest so far, of this device, on a CPU of this process). With an `eval_dataset` the same of held-out rows, see
    `HeldOutEvaluation`.

    Args:
        d2e: the objective; the training rows have a column of prompt ids for each of its views, `answer` and, for an
            objective that treats the tokens of the response form apart, `content`.
        packing: how batches are laid out, see `choose_layout`; the collator follows from it unless one is given.
        attention: the attention implementation for packed rows, see `choose_layout`.

    Raises:
        UserError: as `choose_layout` and `attach_objective`.
    """

    # The loss is normalised by the whole accumulated batch; the Trainer must not divide it again.
    loss_is_scaled_for_ga = True

    def __init__(
        self,
        model: Any,
        args: Any,
        *,
        d2e: D2ESection,
        packing: Packing = "auto",
        attention: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(model, args, **options)
        _keep_sums_in_float32(self.accelerator.state)
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
        self.d2e = d2e
        self.term_weights = objective.weights
        self.add_callback(_StepActions)
        # Makes the Trainer count the labels of the global batch, for any model class; ours are not shifted.
        self.model_accepts_loss_kwargs = True
        self._loss_shifts_labels = False
        self._metrics = ObjectiveMetrics(d2e, self.term_weights, self.args.device)
        self._metrics_start: float | None = None  # seconds of training, evaluations left out

    def _keep_frozen_views(self, d2e: D2ESection, padding: int, rows: Any, held_out: Any) -> None:
        self.train_dataset = None if rows is None else numbered(rows)
        self.eval_dataset = None if held_out is None else numbered(held_out, len(rows) if rows is not None else 0)
        given = [row for dataset in (rows, held_out) if dataset is not None for row in dataset]
        with self.compute_loss_context_manager():
            states = states_before_training(
                self.model,
                d2e,
                self.layout,
                given,
                pad_token_id=padding,
                batch_size=self.args.per_device_train_batch_size,
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
        rows = model_inputs(inputs)
        targets = rows["targets"]
        sums = model(**rows, view_accuracy=not model.training or self._logs_after_this_step())
        if num_items_in_batch is None:  # a call outside the training loop: the micro-batch is all there is
            scale = torch.tensor(1.0 / len(targets), device=targets.device)
        else:  # gradients are averaged over processes, the count is summed over them
            scale = self.accelerator.num_processes / torch.as_tensor(num_items_in_batch, device=targets.device)
        if model.training:
            self._metrics.update(sums, targets, inputs["view_tokens"], scale)
        else:
            self.update_held_out(sums, targets, inputs["view_tokens"])
        scaled = sums["loss"] * scale
        return (scaled, {}) if return_outputs else scaled

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
            }
        super().log(logs, start_time)

    def _seconds(self) -> float:
        return time.perf_counter() - self.evaluation_seconds


def _largest_memory(device: torch.device) -> int:
    """Bytes: of an accelerator's allocator, or of the process, as the system counts them."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _keep_sums_in_float32(state: Any) -> None:
    """FSDP2 casts what the model returns to the policy's output dtype: here the sums of the loss, not logits."""
    plugin: Any = getattr(state, "fsdp_plugin", None)
    policy = getattr(plugin, "mixed_precision_policy", None)
    if policy is not None and getattr(plugin, "fsdp_version", 1) == 2:
        plugin.mixed_precision_policy = replace(policy, output_dtype=torch.float32)
