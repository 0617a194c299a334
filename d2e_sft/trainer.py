"""D2ETrainer: transformers' Trainer with the D²E objective.

Unusual here: the loss is a sum over answer tokens divided by the answer tokens of the *global* batch, so the
gradient does not depend on how a batch is cut into micro-batches, accumulation steps and processes.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback

from d2e_sft.checkpoints import AtomicCheckpoints
from d2e_sft.forward import last_logits
from d2e_sft.loss import D2ELoss, d2e_loss
from d2e_sft.recipe import D2ESection, View
from d2e_sft.views import IGNORE

_ROW_INPUTS = ("input_ids", "attention_mask", "position_ids")


class _LogLastStep(TrainerCallback):
    """Closes the last logging window, which is shorter than the others where logging_steps does not divide."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        if state.global_step >= state.max_steps:
            control.should_log = True
        return control


class D2ETrainer(AtomicCheckpoints, Trainer):
    """Trains on batches of `ViewCollator` with CE on debiased logits plus KL (PIPER paper, section 3).

    Logs at each logging step, beside the Trainer's own values: `ce` and `kl` (nats a token, `loss` = ce +
    kl_weight · kl), `debiased_accuracy` (share of answer tokens that the debiased argmax gets right) and
    `tokens_per_second` (input tokens of all views, padding aside, over all processes).

    Args:
        d2e: the objective; the collator must supply the same views.
    """

    # The loss is normalised by the whole accumulated batch; the Trainer must not divide it again.
    loss_is_scaled_for_ga = True

    def __init__(self, *args: Any, d2e: D2ESection, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.d2e = d2e
        self.add_callback(_LogLastStep)
        # Makes the Trainer count the labels of the global batch, for any model class; ours are not shifted.
        self.model_accepts_loss_kwargs = True
        self._loss_shifts_labels = False
        self._window = torch.zeros(6, dtype=torch.float64)
        self._window_start = 0.0

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """The objective on one micro-batch, as its share of the global batch's mean over answer tokens."""
        if model.training and not self._window.any():
            self._window_start = time.perf_counter()
        labels = inputs["labels"]
        answer = labels.ne(IGNORE)
        logits = self._view_logits(model, inputs, answer)
        loss = d2e_loss(
            logits["original"],
            labels[answer],
            imagined=logits.get("imagined"),
            refined=logits.get("refined"),
            alpha=self.d2e.effective_alpha,
            kl_weight=self.d2e.kl_weight,
            kl_direction=self.d2e.kl_direction,
        )
        scale = self._scale(num_items_in_batch, answer)
        if model.training:
            self._note(loss, scale, answer, inputs["attention_mask"])
        scaled = loss.loss * scale
        return (scaled, {}) if return_outputs else scaled

    def _view_logits(self, model: nn.Module, inputs: dict[str, Tensor], answer: Tensor) -> dict[View, Tensor]:
        """Logits at answer positions, (N, V) a view; one forward, or two where only the original has gradient."""
        views = self.d2e.views
        rows = {name: inputs[name] for name in _ROW_INPUTS}
        batch, width = answer.shape
        # The token at column c is predicted at c − 1: keep one column more and leave the last.
        if self.d2e.view_gradients == "all" or len(views) == 1:
            logits, _ = last_logits(model, width + 1, **rows, use_cache=False)
            parts = logits[:, :-1].split(batch)
        else:
            with torch.no_grad():
                rest, _ = last_logits(
                    model, width + 1, **{name: value[batch:] for name, value in rows.items()}, use_cache=False
                )
            first, _ = last_logits(
                model, width + 1, **{name: value[:batch] for name, value in rows.items()}, use_cache=False
            )
            parts = (first[:, :-1], *rest[:, :-1].split(batch))
        return {view: part[answer] for view, part in zip(views, parts, strict=True)}

    def _scale(self, num_items_in_batch: Tensor | int | None, answer: Tensor) -> Tensor:
        if num_items_in_batch is None:  # a call outside the training loop: the micro-batch is all there is
            return 1.0 / answer.sum()
        # Gradients are averaged over processes, the count is summed over them.
        return self.accelerator.num_processes / torch.as_tensor(num_items_in_batch, device=answer.device)

    def _note(self, loss: D2ELoss, scale: Tensor, answer: Tensor, mask: Tensor) -> None:
        tokens = answer.sum()
        now = torch.stack([loss.ce * scale, loss.kl * scale, tokens * scale, loss.correct, tokens, mask.sum()])
        self._window += now.detach().cpu().double()  # in this order: MPS has no float64

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the objective's parts, averaged since the last log and over processes."""
        if "loss" in logs:
            logs.update(self._close_window())
        super().log(logs, start_time)

    def _close_window(self) -> dict[str, float]:
        window = self._window
        if self.accelerator.num_processes > 1:
            window = self.accelerator.gather(window.to(self.args.device)[None]).sum(dim=0)
        # The shares of one optimiser step add up to `num_processes`, so `share` is the window's step count in
        # that unit, and ce + kl_weight · kl equals the mean of step losses that the Trainer logs.
        ce, kl, share, correct, answers, tokens = window.tolist()
        seconds = time.perf_counter() - self._window_start
        self._window.zero_()
        return {
            "ce": ce / share,
            "kl": kl / share,
            "debiased_accuracy": correct / answers,
            "tokens_per_second": round(tokens / seconds, 1),
        }
