"""When a training logs and evaluates, and what it prints: a progress bar, and a line at each log."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback
from transformers.trainer_callback import ProgressCallback
from transformers.trainer_utils import IntervalStrategy

from d2e_sft.config.objectives import OBJECTIVES, is_own
from d2e_sft.train.samples import DEBIASED, IMAGINED, PLAIN, PREFIX, PROBED
from d2e_sft.util.progress import Progress
from d2e_sft.util.table import percent
from d2e_sft.util.terminal import filled, is_quiet, say

if TYPE_CHECKING:
    from d2e_sft.train.trainer import D2ETrainer

_TERMS = ("ce", "refined_ce", "imagined_ce", "kl", "preference")
_WIDTH = 9


class StepActions(TrainerCallback):
    """Logs and evaluates after the last step too, even if logging_steps or eval_steps does not divide it.

    Logs at a checkpoint, too, which does not hold the sums of a half-filled logging window. A resumed run takes its
    intervals from its arguments instead of the checkpoint. Names the objective as training begins.
    """

    def __init__(self, trainer: D2ETrainer) -> None:
        self.trainer = trainer

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.trainer.token_steps is not None:
            self.trainer.token_steps.epoch = int(state.epoch or 0)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.laps.enter("elsewhere")

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        state.compute_steps(args, state.max_steps)
        if state.is_world_process_zero:
            chosen = self.trainer.recipe.d2e.objective
            alternatives = ", ".join(name for name in OBJECTIVES if name != chosen)
            say(filled(f"objective: {chosen}; others: {alternatives} (d2e.objective=NAME)"))
            if is_own(chosen) and "imagined" in self.trainer.recipe.d2e.views and not self.trainer.recipe.d2e.debias:
                say("  decoded plainly; if the function subtracts the imagined view, set d2e.debias=true")
            if state.global_step:
                say(f"resumed after step {state.global_step:,} of {state.max_steps:,}")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        ends = state.global_step >= state.max_steps
        control.should_log |= ends or control.should_save
        if ends:
            control.should_evaluate |= args.eval_strategy == IntervalStrategy.STEPS
        return control


class LossLines(ProgressCallback):
    """transformers' progress bar with a line for each log: step, loss, its terms, shares, tokens a second.

    `accuracy` is the share of answer tokens that are the likeliest ones as the model is decoded, `preferred` the share
    of pairs whose gold answer has the higher reward. `kl_rows` is the share of rows whose refined view differs from
    the original. An evaluation also shows values of the user's own, whose names are `own`.
    """

    training_bar: Any
    prediction_bar: Any

    def __init__(self, own: Collection[str] = ()) -> None:
        super().__init__()
        self.own = own
        self.begun_at = 0  # the step after which this call began
        self._columns: list[str] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self.training_bar = Progress(
                total=state.max_steps, initial=state.global_step, desc="training", unit="step"
            )
        self.begun_at = self.current_step = state.global_step

    def on_prediction_step(
        self, args: Any, state: Any, control: Any, eval_dataloader: Any = None, **kwargs: Any
    ) -> None:
        if state.is_world_process_zero and self.prediction_bar is None:
            self.prediction_bar = Progress(total=len(eval_dataloader), desc="evaluating", unit="batch")
        if self.prediction_bar is not None:
            self.prediction_bar.update(1)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Write the line, under a header where its columns are new."""
        if not state.is_world_process_zero or self.training_bar is None or not logs or is_quiet():
            return
        for line in self.lines(state.global_step, logs):
            self.training_bar.write(line)

    def lines(self, step: int, logs: Mapping[str, Any]) -> list[str]:
        """A log as lines of text: of a training step, of an evaluation, of the probe, or of the end."""
        if "train_runtime" in logs:
            steps, mean = f"{step:,} steps", "mean loss"
            if self.begun_at:
                steps, mean = f"{step - self.begun_at:,} of {steps}", "mean loss of these"
            return [f"{steps} in {logs['train_runtime']:,.0f} s; {mean} {logs['train_loss']:.4g}"]
        probed = []
        if f"{PREFIX}{PLAIN}_conflict" in logs:
            plain, debiased, imagined = (
                " / ".join(f"{100 * logs[f'{PREFIX}{name}_{subset}']:.0f}" for subset in PROBED)
                for name in (PLAIN, DEBIASED, IMAGINED)
            )
            probed = [
                f"step {step:,}, aligned / conflict: plainly {plain}, debiased {debiased}, without the context "
                f"{imagined} %"
            ]
        if "eval_loss" in logs:
            values = {name.removeprefix("eval_"): value for name, value in logs.items()}
            cells = _cells(values)
            metrics = {name.removeprefix("eval_") for name in self.own}
            cells |= {
                name: f"{values[name]:.4g}" for name in sorted(metrics - {*cells}) if _is_number(values.get(name))
            }
            shown = ", ".join(f"{name} {value}" for name, value in cells.items() if value)
            return [f"step {step:,}, held out: {shown}", *probed]
        if "loss" not in logs:
            return probed
        cells = {"step": f"{step:,}", **_cells(logs)}
        header, line = ("".join(texts)[_WIDTH - 4 :] for texts in zip(*map(_column, cells.items()), strict=True))
        if list(cells) == self._columns:
            return [line]
        self._columns = list(cells)
        return [header, line]


def _column(cell: tuple[str, str]) -> tuple[str, str]:
    """Pad a column's name and value to one width, with a blank or more to its left."""
    name, value = cell
    width = max(_WIDTH, len(name)) + 2
    return name.rjust(width), value.rjust(width)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _cells(logs: Mapping[str, Any]) -> dict[str, str]:
    """Column → text, of what there is."""
    terms = [name for name in _TERMS if name in logs]
    cells = {name: f"{logs[name]:.4g}" for name in ("loss", *(terms if len(terms) > 1 else [])) if name in logs}
    shares = {"kl_rows": "kl_rows", "preferred": "rewards/accuracies", "accuracy": "mean_token_accuracy"}
    shares |= {"em": "em", "f1": "f1"}
    cells |= {name: percent(logs[key]) for name, key in shares.items() if key in logs}
    if "tokens_per_second" in logs:
        cells["tokens/s"] = f"{logs['tokens_per_second']:,.0f}"
    return cells
