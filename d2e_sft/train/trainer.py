"""D2ETrainer: transformers' Trainer with an objective over the views of a sample.

Unusual here: the loss is a sum over answer tokens divided by the answer tokens of the *global* batch. So the gradient
does not depend on how a batch is split into micro-batches, accumulation steps and processes.
"""

import copy
import inspect
import resource
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import EarlyStoppingCallback, Trainer
from transformers.integrations.liger import apply_liger_kernel
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from d2e_sft.config.recipe import Precision, Recipe
from d2e_sft.data.chat_template import pad_id
from d2e_sft.model.collation import counts_of, model_inputs
from d2e_sft.model.device import LapTimer, autocast, without_cudnn_attention
from d2e_sft.model.forward import may_leave_parameters_out
from d2e_sft.model.layers import check_compiler, compile_layers
from d2e_sft.model.packing_support import agree_on_layout, collator_for
from d2e_sft.objective.attach import AttachedObjective
from d2e_sft.objective.metrics import ObjectiveMetrics
from d2e_sft.objective.reference import REFERENCE, Reference
from d2e_sft.train.checkpoints import WholeCheckpoints, explaining_full_disk
from d2e_sft.train.checks import loads_whole_steps
from d2e_sft.train.config import D2EConfig, check_names
from d2e_sft.train.inputs import Inputs, Refiner, load_inputs, name_of, refined_by_rule
from d2e_sft.train.keeping import KeepingTrainer
from d2e_sft.train.loader import REPEATED, TokenBudgetSteps, count_answers, step_loader
from d2e_sft.train.prepare import keep_sums_in_float32, settle_recipe
from d2e_sft.train.probe import ReadingProbe
from d2e_sft.train.progress import LossLines, StepActions
from d2e_sft.train.record import RecordRun
from d2e_sft.train.rows import check_pairs, with_column
from d2e_sft.train.safeguards import NUMBER, ROWS, NumberedBatches, StepGuard
from d2e_sft.train.samples import Balance
from d2e_sft.util.distributed import broadcast_from_main, process_state, same_everywhere
from d2e_sft.util.errors import UserError
from d2e_sft.util.startup import bars_if_slow
from d2e_sft.util.terminal import quietly

_INSTEAD = {
    "model_init": "give the model, or its name, as `model`",
    "data_collator": "leave it out: the trainer lays out the views of its rows",
    "compute_loss_func": "the objective defines the loss; your own function is objective='module:function'",
    "preprocess_logits_for_metrics": "compute_metrics gets generated answers and references instead of logits",
}


class D2ETrainer(KeepingTrainer):
    """transformers' Trainer for D²E-SFT and the other objectives over the views of a sample (PIPER paper, section 3).

        trainer = D2ETrainer("builtin:smollm2-135m-instruct", D2EConfig("runs/mine"), train_dataset=rows)
        trainer.train()
        trainer.save_model()

    Each log adds the values of `_logged_values`; with an `eval_dataset` those of held-out rows are logged as `eval_…`.
    `predict(rows)`, and `compute_metrics` at each evaluation, get generated answers (see `EvaluatingTrainer`).

    Args:
        model: A model of transformers, possibly in a PeftModel, or a name for `load_model`.
        args: A `D2EConfig`, or transformers' TrainingArguments, which are completed with the defaults of `D2EConfig`.
        train_dataset, eval_dataset: Rows with `question`, `answer` and `context` for `samples_of`, or `ReadSamples`.
            Tokens are accepted as well: a column of prompt ids for each view, `answer` and, for objectives that treat
            the response form separately, `content`. `eval_dataset` may be a dict of several sets.
        probe_dataset: Such rows, or a file, with a column `subset` (`aligned` or `conflict`). See `ReadingProbe`.
        processing_class: The tokenizer; None takes the model's own.
        peft_config: Configuration of an adapter that is trained instead of all weights; None takes the recipe's, if
            any.
        refiner: Makes refined contexts for samples without one; None makes none.
        recipe: Recorded with the run; None takes that of the arguments, with the model and the rows.
        options: Further options of transformers' Trainer (`callbacks`, `optimizers`, …).

    Attributes:
        recipe: All settings of the run, as they are recorded.
        layout: How micro-batches are laid out, see `choose_layout`.
        objective: Computes the loss in a call of the model.

    Raises:
        UserError: The model does not load, a row is not a sample or too long, or layout or objective do not fit.
    """

    # The loss is normalised by the whole accumulated batch; the Trainer must not divide it again.
    loss_is_scaled_for_ga = True
    train_dataset: Any
    data_collator: Any
    token_steps: TokenBudgetSteps | None = None
    _metrics_start: float | None = None  # seconds of training, evaluations left out

    def __init__(
        self,
        model: Any = None,
        args: Any = None,
        *,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        probe_dataset: Any = None,
        processing_class: Any = None,
        peft_config: Any = None,
        refiner: Refiner | None = refined_by_rule,
        recipe: Recipe | None = None,
        **options: Any,
    ) -> None:
        options = {name: value for name, value in options.items() if value is not None}
        check_names("D2ETrainer", options, inspect.signature(Trainer).parameters)
        for name in options.keys() & _INSTEAD.keys():
            raise UserError(f"D2ETrainer: {name} is not supported", _INSTEAD[name])
        args = D2EConfig("trainer_output") if args is None else copy.copy(D2EConfig.of(args))
        self.recipe = args.recipe = recipe or args.recipe.model_copy(deep=True)
        self.model_name = name_of(model)
        loaded = load_inputs(model, args, processing_class, self.model_name, peft_config)
        self.inputs = Inputs(loaded, args, train_dataset, eval_dataset, refiner)
        if args.ddp_find_unused_parameters is None:
            args.ddp_find_unused_parameters = may_leave_parameters_out(loaded.model)
        evaluated = self.when_to_evaluate(args, probe_dataset)
        checkpoints, args.save_total_limit = WholeCheckpoints(self, args.save_total_limit), None
        super().__init__(
            loaded.model,
            args,
            train_dataset=self.inputs.train_dataset,
            eval_dataset=self.inputs.eval_dataset,
            processing_class=loaded.tokenizer,
            **options,
        )
        args.eval_strategy = evaluated
        self.laps = LapTimer(args.device)
        self.guard = StepGuard(self)
        with quietly(args.disable_tqdm):
            self.objective = self._prepare_model()
        weights = self.objective.of_tokens.weights
        self._sums = ObjectiveMetrics(self.recipe.d2e, weights, args.device)
        self.prepare_evaluations(weights)
        self.record = None
        if self.train_dataset is not None:
            self.record = RecordRun(self, train_dataset, eval_dataset, probe_dataset, derives=recipe is None)
        self._add_callbacks(checkpoints)

    @classmethod
    def from_recipe(cls, recipe: Recipe, samples: Mapping[str, Any], *, overwrite: bool = False) -> Self:
        """Make the trainer of `d2e train`: load the recipe's model, and encode the samples of `read_all`.

        `overwrite` removes an earlier run as training begins.
        """
        state = process_state()
        settle_recipe(recipe)
        # Machines may differ, and all processes must train in the same precision.
        recipe.train.bf16 = broadcast_from_main(state, lambda: recipe.train.bf16)
        # Before the model is loaded: under ZeRO-3 the arguments make transformers load it in shards.
        args: Any = D2EConfig.from_recipe(recipe)
        args.overwrite_output_dir = overwrite
        if recipe.train.compile_layers:
            check_compiler(state.device)
        return cls(recipe.model.name, args, **samples, recipe=recipe)

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **options: Any) -> Any:
        """Like transformers', in a folder without a run unless it is resumed; a finished run is only loaded.

        Raises ProcessError if disk or memory is full, UserError if a loss or weight is NaN, or as `prepare_folder`.
        """
        if not any(parameter.requires_grad for parameter in self.model.parameters()):
            raise UserError(
                "D2ETrainer: all weights of the model are frozen, so there is nothing to train",
                remedy="model.requires_grad_(True), give peft_config, or load an adapter with is_trainable=True",
            )
        if self.train_dataset is not None:
            same_everywhere(self.accelerator.state, "the training tokens", self.tokens_sha256)
        resume = broadcast_from_main(self.accelerator.state, lambda: self.prepare_folder(resume_from_checkpoint))
        self.finished = resume is not None and Path(resume) == Path(self.args.output_dir)
        if self.finished:
            return self.load_finished()
        self._cpu_start = self.trained_seconds()[1]
        with (
            explaining_full_disk(self, Path(self.args.output_dir)),
            quietly(self.args.quiet),
            bars_if_slow(shown=not self.args.disable_tqdm),
            without_cudnn_attention(),  # in the backward, too
        ):
            return super().train(resume, *args, **options)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Like transformers'; our own loader of whole steps if `loads_whole_steps`."""
        if not loads_whole_steps(self.recipe):
            return super().get_train_dataloader()
        if self.train_dataset is None:
            raise ValueError("training needs rows: pass train_dataset to the trainer")
        loader, self.token_steps = step_loader(self)
        return loader

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Tensor]:
        """The micro-batches of a step, and their gold answer tokens summed over all processes."""
        self.laps.enter("data")
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        tokens = count_answers(batches, lambda counts: self.accelerator.gather(counts[None]).sum(dim=0), device)
        parts = [part for batch in batches for part in batch.get("micro_batches", [batch]) if REPEATED not in part]
        seen = sum(counts_of(part)[0] for part in parts)
        if self.accelerator.num_processes > 1:
            seen = int(self.accelerator.reduce(torch.tensor(seen, device=device)))
        self.state.num_input_tokens_seen += seen  # kept in checkpoints; tokens of all views, each counted whole
        self.laps.enter("elsewhere")
        return batches, tokens

    def _track_num_input_tokens(self, inputs: dict[str, Any]) -> None:
        """Count nothing: `get_batch_samples` has counted, and a packed row has fewer tokens than its views."""

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Forward and backward of a micro-batch, or of all micro-batches of a step; explains full memory."""
        self.laps.enter("model")
        parts = inputs.get("micro_batches", [inputs])
        losses = []
        for i, part in enumerate(parts):
            last = i == len(parts) - 1
            if len(parts) > 1:  # gradients are exchanged once a step
                self.accelerator.sync_gradients = last
            rows = part.pop(ROWS, None)
            wait = self.accelerator.no_sync(model) if not last and not self.is_deepspeed_enabled else nullcontext()
            with wait, self.guard.explaining_full_memory(rows):
                loss = super().training_step(model, part, num_items_in_batch)
            self.guard.add(loss, rows)
            losses.append(loss)
        self.laps.enter("optimizer")
        return torch.stack(losses).sum()

    def compute_loss_context_manager(self) -> ExitStack:
        stack: ExitStack = super().compute_loss_context_manager()
        stack.enter_context(without_cudnn_attention())
        return stack

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """The objective on one micro-batch, as its share of the global batch's mean over answer tokens."""
        if self.model.training and self._metrics_start is None:
            self._metrics_start = self.trained_seconds()[0]
        repeated, _ = inputs.pop(REPEATED, False), inputs.pop(ROWS, None)
        rows = model_inputs(inputs)
        targets, counts = rows["targets"], counts_of(inputs)
        with self.accelerator.autocast():
            sums = self.objective.sums(model, rows)
        if num_items_in_batch is None:  # a call outside the training loop: the micro-batch is all there is
            scale = torch.tensor(1.0 / len(targets), device=targets.device)
        else:  # gradients are averaged over processes, the count is summed over them
            scale = self.accelerator.num_processes / torch.as_tensor(num_items_in_batch, device=targets.device)
        if repeated:
            scale = torch.zeros_like(scale)
        elif self.model.training:  # not of a DeepSpeed engine, which is always in training mode
            if "pairs" in rows:
                sums["pair_scale"] = scale * rows["pairs"].tokens_per_pair
            self._sums.update(sums, targets, counts, scale)
        else:
            self.count_held_out(sums, targets, counts)
        scaled = sums["loss"] * scale
        return (scaled, {}) if return_outputs else scaled

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        count = super().floating_point_ops
        return sum(count(part) for part in inputs.get("micro_batches", [inputs]))

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the objective's values, averaged since the last log and over processes; at the end the time it took.

        `train_cpu_seconds` leaves out evaluations, `train_seconds` does not. A resumed run has measured its last
        session: its time per step stands for the steps before.
        """
        if "loss" in logs:
            values, tokens = self._sums.compute(self.accelerator)
            seconds = self.trained_seconds()[0] - (self._metrics_start or 0.0)
            self._metrics_start = None
            logs |= self._logged_values(values, tokens / seconds)
        if "train_runtime" in logs and (steps := self.state.global_step - self._initial_global_step):
            spent = self.trained_seconds()[1] - self._cpu_start
            for name, seconds in (("train_cpu_seconds", spent), ("train_seconds", logs["train_runtime"])):
                logs[name] = round(seconds * self.state.global_step / steps, 3)
        super().log(logs, start_time)

    def _logged_values(self, values: Mapping[str, float], tokens_per_second: float) -> dict[str, float]:
        """The values that a log adds to the Trainer's own, with `values` of `ObjectiveMetrics` since the last one.

        - the objective's terms (`ce`, `kl`, …, nats per token; `loss` is their sum, with `kl` times kl_weight);
        - with pairs `preference`, their loss in nats, and by TRL's names `rewards/…` and `logps/…`: means over pairs;
        - `mean_token_accuracy`: the share of answer tokens that the argmax gets right, as the model is decoded;
        - `plain_accuracy` and `bias_share`, if there is an imagined view: the same by the original view only, and by
          the imagined view, which guesses answers without the context;
        - `kl_rows`: the share of rows whose refined view differs from the original: the others add nothing to `kl`;
        - `alpha` of training, `tokens_per_second` (all views, each counted whole, over all processes), and
          `memory_gib`, the peak so far of this device, or of this process on a CPU;
        - `skipped_steps` in float16: how many steps the gradient scaler has skipped since the last log;
        - shares of the time: `time_in_model` (forward and backward), `time_in_optimizer` (clipping included),
          `time_in_data` (waiting for batches), `time_elsewhere` (logging, checkpoints, evaluation).
        """
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        if self.args.device.type == "cuda":
            memory = torch.cuda.max_memory_allocated(self.args.device)
        shares = {f"time_{'' if part == 'elsewhere' else 'in_'}{part}": x for part, x in self.laps.shares().items()}
        return {
            **values,
            "alpha": self.recipe.d2e.effective_alpha,
            "tokens_per_second": round(tokens_per_second, 1),
            "memory_gib": round(memory / 2**30, 3),
            **({"skipped_steps": self.guard.skipped_since_log()} if self.args.fp16 else {}),
            **{name: round(share, 4) for name, share in shares.items()},
        }

    def _prepare_model(self) -> AttachedObjective:
        """Choose the layout for the device of training, attach the objective, and number the rows."""
        args, model, d2e = self.args, self.model, self.recipe.d2e
        self.model_accepts_loss_kwargs = False  # answer tokens are counted in get_batch_samples
        keep_sums_in_float32(self.accelerator.state)
        if args.use_liger_kernel:  # before packing is checked for exactness
            losses = {"cross_entropy": False, "fused_linear_cross_entropy": False}
            apply_liger_kernel(model, {**(args.liger_kernel_config or {}), **losses})
            args.use_liger_kernel = False  # otherwise training would apply them again, with its own choice
        with self._training_precision():
            self.layout = agree_on_layout(model, d2e, self.recipe.train.packing, self.recipe.model.attention)
        padding = pad_id(self.processing_class) if self.processing_class else 0
        self.data_collator = NumberedBatches(collator_for(self.layout, d2e, model.config, padding))
        objective = AttachedObjective(model, d2e, self.layout)
        if self.train_dataset is not None:
            if d2e.prefers:
                check_pairs(self.train_dataset)
            Balance.of(self.recipe.data.balance, self.train_dataset)
        if d2e.needs_reference:
            self._add_reference(padding)
        if self.train_dataset is not None:
            self.train_dataset = with_column(self.train_dataset, NUMBER, range(len(self.train_dataset)))
        if self.recipe.train.compile_layers:
            compile_layers(model)
        return objective

    @property
    def _precision(self) -> Precision:
        return "bfloat16" if self.args.bf16 else "float16" if self.args.fp16 else "float32"

    def _training_precision(self) -> ExitStack:
        """Compute as training does: accelerate adds autocast to the model only as training begins."""
        stack = self.compute_loss_context_manager()
        stack.enter_context(autocast(self._precision, self.args.device))
        stack.enter_context(self.guard.explaining_full_memory(None))
        return stack

    def _add_reference(self, padding: int) -> None:
        """Add the reference's log-probabilities to the rows."""
        args, d2e = self.args, self.recipe.d2e
        options = {
            "pad_token_id": padding,
            "batch_size": args.per_device_eval_batch_size,
            "precision": self._precision,
        }

        def referred(rows: Any) -> Any:
            if isinstance(rows, dict):
                return {name: referred(its_rows) for name, its_rows in rows.items()}
            return rows and with_column(rows, REFERENCE, reference.log_probabilities(d2e, rows, **options))

        with self._training_precision():
            reference = Reference.of(d2e, self.model, self.layout, self.processing_class)
            self.train_dataset, self.eval_dataset = referred(self.train_dataset), referred(self.eval_dataset)

    def _add_callbacks(self, checkpoints: WholeCheckpoints) -> None:
        """Add callbacks: checks after those that decide on logs and checkpoints, the bar after the first logs."""
        args, record = self.args, self.record
        for callback in (StepActions(self), self.guard, checkpoints, *([record] if record else [])):
            self.add_callback(callback)
        if any(type(callback) is ProgressCallback for callback in self.callback_handler.callbacks):
            self.remove_callback(ProgressCallback)
            self.add_callback(LossLines(self.own_values))
        if args.quiet:
            self.remove_callback(PrinterCallback)
        if args.early_stopping_patience is not None:
            self.add_callback(EarlyStoppingCallback(args.early_stopping_patience, args.early_stopping_threshold))
        if record is None:
            return
        if self.inputs.training is not None:
            self.guard.sample_names = [f"{sample.id} of {sample.dataset}" for sample in self.inputs.training.samples]
        if record.probe is not None:
            probe = ReadingProbe(self, record.probe)
            self.add_callback(probe)
            self.measures.append(probe.measure)
