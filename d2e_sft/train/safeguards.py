"""Stop a training before it does harm: at a loss or weight that is NaN, at full memory, at SIGTERM.

Unusual here: losses are checked where the loop waits for the device anyway: at each step on a CPU or with several
processes, otherwise at a log or a checkpoint. So the last checkpoint is always good.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import gather_object
from torch import Tensor
from transformers import TrainerCallback

from d2e_sft.model.collation import Row
from d2e_sft.model.device import is_out_of_memory
from d2e_sft.model.finite import non_finite
from d2e_sft.train.run_folder import NON_FINITE_FILE
from d2e_sft.util.errors import ProcessError, UserError
from d2e_sft.util.files import write_json
from d2e_sft.util.signals import Termination
from d2e_sft.util.terminal import warn

if TYPE_CHECKING:
    from d2e_sft.train.trainer import D2ETrainer

NUMBER = "row"  # the column with a row's number in the training set
ROWS = "rows"  # key of a batch: row numbers in the training set
# float16 may overflow: the scaler skips such a step and lowers its scale. After 20 steps in a row it never recovers.
FLOAT16_PATIENCE = 20
_NAMED_SAMPLES = 8


class NumberedBatches:
    """A collator that adds row numbers to its batches, if rows are numbered."""

    def __init__(self, collate: Any) -> None:
        self.collate = collate

    def __call__(self, batch: Sequence[Row]) -> dict[str, Any]:
        collated: dict[str, Any] = self.collate(batch)
        if all(NUMBER in row for row in batch):
            collated[ROWS] = torch.tensor([row[NUMBER] for row in batch])
        return collated


class StepGuard(TrainerCallback):
    """Stops a training at a loss or weight that is NaN or infinite, explains full memory, and saves at SIGTERM.

    Add it after the callbacks that decide about logs and checkpoints.

    Attributes:
        sample_names: Names of the training rows, in order; None uses their numbers.
        termination: Polled after each step; None if SIGTERM is not handled.
        stopped: SIGTERM ended the training early; its last step has a checkpoint.
    """

    def __init__(self, trainer: D2ETrainer) -> None:
        self.trainer = trainer
        self.sample_names: Sequence[str] | None = None
        self.termination: Termination | None = None
        self.stopped = False
        self._in_a_row = 0
        self._skipped = self._skipped_in_a_row = 0
        self._scale: float | None = None  # the loss scale, in float16
        self._losses: list[tuple[Tensor, Tensor | None]] = []  # of micro-batches not yet checked, with their rows

    @contextmanager
    def explaining_full_memory(self, rows: Tensor | None) -> Iterator[None]:
        """Turn an out-of-memory error into a message with the samples' lengths and remedies."""
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise ProcessError(*self._too_large(rows, error)) from error

    def add(self, loss: Tensor, rows: Tensor | None) -> None:
        """Keep a micro-batch's loss and row numbers until the next check."""
        self._losses.append((loss.detach(), rows))

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Remember the loss scale that a training begins or continues with."""
        scaler = self.trainer.accelerator.scaler
        self._scale = None if scaler is None else scaler.get_scale()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Report a step that the gradient scaler skips; raise UserError if too many in a row are skipped."""
        if not self._was_skipped():
            self._skipped_in_a_row = 0
            return
        self._skipped += 1
        self._skipped_in_a_row += 1
        step = state.global_step + 1
        scale = "" if self._scale is None else f"; the loss scale falls to {self._scale:g}"
        if self._skipped_in_a_row > FLOAT16_PATIENCE:
            raise UserError(
                f"{args.output_dir}: the gradients of {self._skipped_in_a_row} steps in a row overflowed in float16, "
                f"the last at step {step}{scale}; expected finite ones at a smaller scale",
                remedy="lower train.learning_rate, or train in bfloat16 or float32 (train.fp16=false)",
            )
        if state.is_world_process_zero:
            warn(f"step {step}: a gradient overflowed in float16, so the step is skipped{scale}")

    def _was_skipped(self) -> bool:
        """Whether the gradient scaler skipped the step: a fused optimiser skips it itself, so only the scale tells."""
        accelerator, before = self.trainer.accelerator, self._scale
        if accelerator.scaler is None:  # DeepSpeed has its own
            return bool(accelerator.optimizer_step_was_skipped)
        self._scale = accelerator.scaler.get_scale()
        return before is not None and self._scale < before

    def skipped_since_log(self) -> int:
        """Return how many steps were skipped since the last call."""
        skipped, self._skipped = self._skipped, 0
        return skipped

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Check the losses, and stop with a checkpoint if SIGTERM arrived.

        Raises UserError if a loss is NaN or infinite; its samples are in `non_finite.json`.
        """
        if self._check_losses(now=control.should_log or control.should_save):
            control.should_save = control.should_log = control.should_training_stop = True
            control.should_evaluate = False
            self.stopped = state.global_step < state.max_steps
        return control

    def check_weights(self) -> None:
        """Raise UserError if a trained weight is NaN or infinite, before it is kept; all processes call it."""
        parameters = self.trainer.model.named_parameters()
        bad = non_finite([(name, parameter) for name, parameter in parameters if parameter.requires_grad])
        weights = [name for name in gather_object([bad]) if name is not None]
        if weights:
            self._stop([], weights[0])

    def _check_losses(self, *, now: bool) -> bool:
        """Check losses where the loop waits for the device anyway; return whether a process received SIGTERM."""
        trainer, together = self.trainer, self.trainer.accelerator.num_processes > 1
        asked = self.termination is not None and self.termination.asked
        if not (now or together or trainer.args.device.type == "cpu"):
            return asked
        kept, self._losses = self._losses, []
        finite = torch.stack([loss.float().isfinite() for loss, _ in kept]).tolist() if kept else []
        bad = [pair for pair, fine in zip(kept, finite, strict=True) if not fine]
        counts = torch.tensor([asked, bool(bad)], dtype=torch.float32, device=trainer.args.device)
        if together:
            counts = trainer.accelerator.reduce(counts, reduction="sum")
        anyone_asked, anyone_bad = (bool(count) for count in counts.tolist())
        self._in_a_row = self._in_a_row + 1 if anyone_bad else 0
        if anyone_bad and not (trainer.args.fp16 and self._in_a_row < FLOAT16_PATIENCE):
            self._stop([(float(loss), self._names(rows)) for loss, rows in bad])
        return anyone_asked

    def _stop(self, bad: Sequence[tuple[float, list[str]]], weight: str | None = None) -> None:
        trainer = self.trainer
        run, step = Path(trainer.args.output_dir), trainer.state.global_step
        losses = gather_object(list(bad)) if trainer.accelerator.num_processes > 1 else list(bad)
        samples = [name for _, names in losses for name in names]
        if trainer.args.should_save:
            # Losses as text: JSON has no NaN.
            content = {"step": step, "weight": weight, "losses": [str(loss) for loss, _ in losses], "samples": samples}
            write_json(run / NON_FINITE_FILE, content)
        problem = f"the weight {weight} became NaN or infinite" if weight else f"the loss became {losses[0][0]}"
        more = f" and {len(samples) - _NAMED_SAMPLES} more" if len(samples) > _NAMED_SAMPLES else ""
        micro_batch = f", in a micro-batch of {', '.join(samples[:_NAMED_SAMPLES])}{more}" if samples else ""
        raise UserError(
            f"{run}: {problem} at step {step}{micro_batch}; this step is not saved (all samples: {NON_FINITE_FILE})",
            remedy="check these samples, lower train.learning_rate or d2e.alpha, or train in float32. The last "
            "checkpoint is good; to continue from it with other data or another recipe: model.name=…/checkpoint-N",
        )

    def _names(self, rows: Tensor | None) -> list[str]:
        if rows is None:
            return []
        return [str(n) if self.sample_names is None else self.sample_names[n] for n in rows.tolist()]

    def _too_large(self, rows: Tensor | None, error: BaseException) -> tuple[str, str]:
        trainer, names = self.trainer, self._names(rows)
        lengths: list[tuple[int, str]] = []
        for name, n in zip(names, [] if rows is None else rows.tolist(), strict=True):
            row = trainer.train_dataset[n]
            views = {key: len(row[key]) + len(row["answer"]) for key in trainer.recipe.d2e.views if key in row}
            by_length = sorted(views.items(), key=lambda view: -view[1])
            lengths.append((sum(views.values()), f"{name}: {', '.join(f'{view} {n}' for view, n in by_length)}"))
        lines = [line for _, line in sorted(lengths, reverse=True)[:_NAMED_SAMPLES]]
        if len(lengths) > _NAMED_SAMPLES:
            lines.append(f"… and {len(lengths) - _NAMED_SAMPLES} shorter ones")
        accelerator = trainer.accelerator
        process = f"process {accelerator.process_index}: " if accelerator.num_processes > 1 else ""
        reason = str(error).strip().split("\n")[0][:200]
        step = f"at step {trainer.state.global_step + 1}, in a micro-batch of {len(names)} samples"
        message = f"{process}out of memory {step if lines else 'before the first step'} ({reason})"
        return "\n  ".join([message, *(["tokens of each view, longest first:", *lines] if lines else [])]), (
            "reduce train.per_device_train_batch_size (train.batch_size may stay), train.micro_batch_tokens or "
            "data.max_length; or set train.gradient_checkpointing=true; or train an adapter (--method sft-lora), or "
            "on several GPUs with --launch zero3 or fsdp2. --dry-run shows the memory. --resume continues from "
            "the last checkpoint"
        )
