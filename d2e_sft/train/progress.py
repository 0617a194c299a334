"""What a training shows on its way: when it logs and evaluates, its lines, and a probe of its use of the context."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerCallback
from transformers.trainer_callback import ProgressCallback
from transformers.trainer_utils import IntervalStrategy

from d2e_sft.config.d2e import D2ESection
from d2e_sft.config.objectives import OBJECTIVES, is_own
from d2e_sft.data.chat_template import pad_id
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import EventSample
from d2e_sft.data.views import ViewEncoder
from d2e_sft.model.collation import IGNORE, model_inputs
from d2e_sft.model.forward import evaluating
from d2e_sft.model.packing_support import collator_for
from d2e_sft.train.rows import dataset_row, encode_samples
from d2e_sft.train.samples import DEBIASED, IMAGINED, PLAIN, PREFIX, PROBED, probe_groups
from d2e_sft.util.progress import Progress
from d2e_sft.util.table import percent
from d2e_sft.util.terminal import filled, is_quiet, say

if TYPE_CHECKING:
    from d2e_sft.train.trainer import D2ETrainer

_COMPUTE = ("train_seconds", "train_cpu_seconds")  # as `trained_seconds` has them
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
        state.logging_steps, state.eval_steps, state.save_steps = args.logging_steps, args.eval_steps, args.save_steps
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


class ReadingProbe(TrainerCallback):
    """Accuracy by subset, logged before the first step and at each evaluation: does the model use the context?

    A sample counts as correct if every token of its answer is the argmax, given the answer's tokens before it. Greedy
    decoding gives this answer in exactly that case, so one forward pass replaces decoding.

    - `eval_plain_aligned`, `eval_plain_conflict`: shares of the first dataset with both subsets that
      the original view answers correctly; of all samples if no dataset has both;
    - `eval_debiased_…`: the same by debiased logits;
    - `eval_imagined_…`: the same without the context; on aligned samples how well the model knows the habit;
    - the same for further datasets of the samples, such as `eval_plain_conflict_revised_untrained`;
    - `eval_habit_gap`: aligned − conflict, as the recipe decodes the model;
    - compute of training so far, without evaluations: seconds by the clock and by CPU time, and the tokens of all
      views, over all processes.

    Every process probes all samples in step, since sharded weights are gathered from all.
    """

    def __init__(self, trainer: D2ETrainer, samples: Sequence[EventSample]) -> None:
        self.trainer, recipe, data = trainer, trainer.recipe, trainer.recipe.data
        self.by_recipe = DEBIASED if recipe.decoding.alpha > 0 else PLAIN
        self.alpha = recipe.decoding.alpha or recipe.d2e.alpha or 0.5
        self.views = D2ESection(alpha=self.alpha, distill=False)
        tokenizer, config = trainer.processing_class, trainer.model.config
        wording, views = load_prompt_set(data.prompt_set, data.form), self.views.views
        encoder = ViewEncoder(tokenizer, wording, views, encoder_decoder=config.is_encoder_decoder)
        encoded = encode_samples(samples, encoder, max_length=data.max_length, overlong="truncate_context")
        self.rows = [dataset_row(item) for item in encoded.kept]
        self.groups = probe_groups(encoded.samples)
        # Without gradients there is room for more, and a shared prefix is computed once per batch.
        self.batch_size = max(recipe.train.per_device_train_batch_size, 32)
        self.collate = collator_for(trainer.layout, self.views, config, pad_id(tokenizer))
        self._start = trainer.trained_seconds()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Probe the untrained model; a resumed run continues the compute that was logged, by time per step."""
        self._start = self.trainer.trained_seconds()
        measured = [entry for entry in state.log_history if PREFIX + _COMPUTE[0] in entry and entry["step"]]
        if measured:
            scale = state.global_step / measured[-1]["step"]
            seconds, cpu_seconds = (scale * measured[-1][PREFIX + name] for name in _COMPUTE)
            self._start = self._start[0] - seconds, self._start[1] - cpu_seconds
        if state.global_step == 0:
            with self.trainer.timed_evaluation():
                self.trainer.log({PREFIX + name: value for name, value in self.measure().items()})

    def measure(self) -> dict[str, float]:
        """The values, without `eval_`; call it inside `timed_evaluation`."""
        now = self.trainer.trained_seconds()
        values: dict[str, float] = {}
        for name, right in self._right().items():
            for group in dict.fromkeys(self.groups):
                of_group = [hit for hit, its_group in zip(right, self.groups, strict=True) if its_group == group]
                values[f"{name}_{group}"] = sum(of_group) / len(of_group)
        values["habit_gap"] = values[f"{self.by_recipe}_aligned"] - values[f"{self.by_recipe}_conflict"]
        compute = {name: end - start for name, end, start in zip(_COMPUTE, now, self._start, strict=True)}
        compute["train_tokens"] = self.trainer.state.num_input_tokens_seen
        return values | {"alpha": self.alpha, "n": min(map(self.groups.count, PROBED)), **compute}

    def _right(self) -> dict[str, list[bool]]:
        """Return which samples are answered correctly, by each of the three views."""
        model, answered = self.trainer.model_wrapped, dict[str, list[bool]]()
        for start in Progress(range(0, len(self.rows), self.batch_size), desc="probe", unit="batch"):
            batch = self.collate(self.rows[start : start + self.batch_size])
            answers = batch["labels"].ne(IGNORE)
            inputs = model_inputs(batch, self.trainer.args.device)
            precision = self.trainer.accelerator.autocast()  # which it adds to the model's own forward only
            with evaluating(model), torch.no_grad(), self.trainer.compute_loss_context_manager(), precision:
                hits = self.trainer.objective.hits(model, inputs, self.views)
            for name, of_tokens in hits.items():
                right = torch.ones_like(answers)
                right[answers] = of_tokens.cpu()
                answered.setdefault(name, []).extend(right.all(dim=1).tolist())
        return answered


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
