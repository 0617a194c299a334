"""What ends a training before it does harm: a loss or a weight that is no number, memory that is full, SIGTERM.

Unusual here: a loss is looked at where the loop waits for the device anyway, at each step on a CPU and with several
processes, else at a log or a checkpoint. It is always before a checkpoint is written, so the last one there is good.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor
from transformers import Trainer, TrainerCallback

from d2e_sft.model.collation import Row
from d2e_sft.model.device import is_out_of_memory
from d2e_sft.model.finite import non_finite
from d2e_sft.objective.bias_model import NUMBER
from d2e_sft.util.errors import ProcessError, UserError
from d2e_sft.util.files import write_json
from d2e_sft.util.signals import Termination

ROWS = "rows"  # of a batch: the numbers of its rows in the training set
NON_FINITE_FILE = "non_finite.json"
# float16 may overflow; the scaler leaves such a step out and lowers its scale. Longer than this it never recovers.
FLOAT16_PATIENCE = 20
_NAMED_SAMPLES = 8


class NumberedBatches:
    """A collator whose batches say which rows they are of, where rows are numbered."""

    def __init__(self, collate: Any) -> None:
        self.collate = collate

    def __call__(self, batch: Sequence[Row]) -> dict[str, Any]:
        """The batch, with (B,) numbers."""
        found: dict[str, Any] = self.collate(batch)
        if all(NUMBER in row for row in batch):
            found[ROWS] = torch.tensor([row[NUMBER] for row in batch])
        return found


class GuardedSteps(Trainer):
    """A Trainer that stops at what is no number, says which samples filled the memory, and saves at SIGTERM.

    Attributes:
        sample_names: of the training rows, in order; None names them by number.
        termination: asked of at each step's end; None where nobody listens to signals.
    """

    sample_names: Sequence[str] | None = None
    termination: Termination | None = None
    stopped = False  # by SIGTERM, at the end of a step whose checkpoint is there
    _in_a_row = 0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._losses: list[tuple[Tensor, Tensor | None]] = []  # and the rows, of micro-batches not yet looked at

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """transformers' own, with the loss and the rows of each micro-batch kept until they are looked at.

        Raises:
            UserError: there is not enough memory for it; names the samples' lengths and what helps.
        """
        rows = inputs.pop(ROWS, None)
        try:
            loss = super().training_step(model, inputs, num_items_in_batch)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise ProcessError(*self._too_large(rows, error)) from error
        self._losses.append((loss.detach(), rows))
        return loss

    def end_step(self, *, looked_at: bool) -> bool:
        """What all processes agree on at a step's end; returns whether SIGTERM asked one of them to stop.

        Args:
            looked_at: the losses must be looked at now, before a log or a checkpoint.

        Raises:
            UserError: a loss is no number; its samples are in `non_finite.json`.
        """
        together = self.accelerator.num_processes > 1
        asked = self.termination is not None and self.termination.asked
        if not (looked_at or together or self.args.device.type == "cpu"):
            return asked
        kept, self._losses = self._losses, []
        finite = torch.stack([loss.float().isfinite() for loss, _ in kept]).tolist() if kept else []
        bad = [pair for pair, fine in zip(kept, finite, strict=True) if not fine]
        found = torch.tensor([asked, bool(bad)], dtype=torch.float32, device=self.args.device)
        if together:
            found = self.accelerator.reduce(found, reduction="sum")
        anyone_asked, anyone_bad = (bool(count) for count in found.tolist())
        self._in_a_row = self._in_a_row + 1 if anyone_bad else 0
        if anyone_bad and not (self.args.fp16 and self._in_a_row < FLOAT16_PATIENCE):
            self._stop([(float(loss), self._names(rows)) for loss, rows in bad])
        return anyone_asked

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """transformers' own, of weights that are numbers.

        Raises:
            UserError: they are not.
        """
        if not _internal_call:
            self.refuse_bad_weights()
        super().save_model(output_dir, _internal_call)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        self.refuse_bad_weights()
        super()._save_checkpoint(model, trial)

    def refuse_bad_weights(self) -> None:
        """Called before weights are written, by all processes.

        Raises:
            UserError: one is NaN or infinite.
        """
        bad = non_finite([(n, p) for n, p in self.model.named_parameters() if p.requires_grad])
        weights = [name for name in gather_object([bad]) if name is not None]
        if weights:
            self._stop([], weights[0])

    def _stop(self, bad: Sequence[tuple[float, list[str]]], weight: str | None = None) -> None:
        run, step = Path(self.args.output_dir), self.state.global_step
        losses = gather_object(list(bad)) if self.accelerator.num_processes > 1 else list(bad)
        samples = [name for _, names in losses for name in names]
        if self.args.should_save:
            content = {"step": step, "weight": weight, "losses": [loss for loss, _ in losses], "samples": samples}
            # Not as JSON's numbers, which have no NaN.
            write_json(run / NON_FINITE_FILE, {**content, "losses": [str(loss) for loss, _ in losses]})
        what = f"the weight {weight} became NaN or infinite" if weight else f"the loss became {losses[0][0]}"
        of = f", in a micro-batch of {_listed(samples)}" if samples else ""
        raise UserError(
            f"{run}: {what} at step {step}{of}; nothing is saved of it (all samples: {NON_FINITE_FILE})",
            remedy="look at these samples; else lower train.learning_rate or d2e.alpha, or train in float32. The last "
            "checkpoint is good: with other data or another recipe train from it (model.name=…/checkpoint-N)",
        )

    def _names(self, rows: Tensor | None) -> list[str]:
        if rows is None:
            return []
        return [str(n) if self.sample_names is None else self.sample_names[n] for n in rows.tolist()]

    def _too_large(self, rows: Tensor | None, error: BaseException) -> tuple[str, str]:
        names = self._names(rows)
        lengths = [_lengths(self.train_dataset[n]) for n in rows.tolist()] if rows is not None else []
        longest = sorted(zip(lengths, names, strict=True), key=lambda pair: -sum(pair[0].values()))
        told = [
            f"{name}: {', '.join(f'{view} {n}' for view, n in of.items())}" for of, name in longest[:_NAMED_SAMPLES]
        ]
        if len(longest) > _NAMED_SAMPLES:
            told.append(f"… and {len(longest) - _NAMED_SAMPLES} shorter ones")
        process = f"process {self.accelerator.process_index}: " if self.accelerator.num_processes > 1 else ""
        said = str(error).strip().split("\n")[0][:200]
        message = (
            f"{process}out of memory at step {self.state.global_step + 1}, in a micro-batch of {len(names)} samples "
            f"({said})"
        )
        return "\n  ".join([message, "tokens of each view, longest first:", *told]), (
            "a smaller train.per_device_train_batch_size (train.batch_size may stay: more are accumulated) or "
            "train.micro_batch_tokens, a smaller data.max_length, train.gradient_checkpointing=true, "
            "--method sft-lora; on several GPUs --launch zero3 or fsdp2. --dry-run estimates the memory, "
            "--resume goes on from the last checkpoint"
        )


class StepChecks(TrainerCallback):
    """Calls `GuardedSteps.end_step`; to be added after what decides about logs and checkpoints."""

    def __init__(self, trainer: GuardedSteps) -> None:
        self.trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        if self.trainer.end_step(looked_at=control.should_log or control.should_save):
            control.should_save = control.should_log = control.should_training_stop = True
            control.should_evaluate = False
            self.trainer.stopped = state.global_step < state.max_steps
        return control


def _lengths(row: Mapping[str, Any]) -> dict[str, int]:
    """Tokens of each view of a row with its answer, the largest first."""
    views = {
        name: len(ids) for name, ids in row.items() if isinstance(ids, list) and name not in ("answer", "content")
    }
    answer = len(row["answer"])
    return {name: n + answer for name, n in sorted(views.items(), key=lambda view: -view[1])}


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED_SAMPLES} more" if len(names) > _NAMED_SAMPLES else ""
    return f"{', '.join(names[:_NAMED_SAMPLES])}{more}"
