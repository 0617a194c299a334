"""D2ETrainer: transformers' Trainer with an objective over the views of a sample.

Unusual here: the loss is a sum over answer tokens divided by the answer tokens of the *global* batch. So the gradient
does not depend on how a batch is split into micro-batches, accumulation steps and processes.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import Trainer

from d2e_sft.config.recipe import Recipe
from d2e_sft.model.collation import counts_of, model_inputs
from d2e_sft.model.device import LapTimer, without_cudnn_attention
from d2e_sft.model.forward import may_leave_parameters_out
from d2e_sft.model.packing_support import Layout
from d2e_sft.objective.metrics import ObjectiveMetrics
from d2e_sft.train.arguments.config import D2EConfig
from d2e_sft.train.arguments.folder import prepare_folder
from d2e_sft.train.arguments.inputs import Refiner, UserInputs, bars, load_inputs, name_of, refined_by_rule
from d2e_sft.train.arguments.names import check_names, without_unset
from d2e_sft.train.arguments.record import RecordRun
from d2e_sft.train.arguments.words import in_pythons_words
from d2e_sft.train.checkpoints import WholeCheckpoints, explaining_full_disk, other_models, save_model_whole
from d2e_sft.train.checks import loads_whole_steps
from d2e_sft.train.evaluation.evaluating import EvaluatingTrainer
from d2e_sft.train.evaluation.held_out import HeldOut
from d2e_sft.train.steps import setup
from d2e_sft.train.steps.loader import REPEATED, TokenBudgetSteps, count_answers, step_loader
from d2e_sft.train.steps.safeguards import ROWS, StepGuard
from d2e_sft.util.startup import without_notes
from d2e_sft.util.terminal import quietly


class D2ETrainer(EvaluatingTrainer):
    """transformers' Trainer for D²E-SFT and the other objectives over the views of a sample (PIPER paper, section 3).

        trainer = D2ETrainer("builtin:smollm2-135m-instruct", D2EConfig("runs/mine"), train_dataset=rows)
        trainer.train()
        trainer.save_model()

    Each log adds the values of `logged_values`; with an `eval_dataset` those of held-out rows are logged as `eval_…`.
    `predict(rows)`, and `compute_metrics` at each evaluation, get generated answers (see `EvaluatingTrainer`).

    Args:
        model: A model of transformers, possibly in a PeftModel, or a name for `load_model`.
        args: A `D2EConfig`, or transformers' TrainingArguments, which are completed with the defaults of `D2EConfig`.
        train_dataset, eval_dataset: Rows with `question`, `answer` and `context` for `samples_of`, or `TokenRows`.
            Tokens are accepted as well: a column of prompt ids for each view, `answer` and, for objectives that treat
            the response form separately, `content`. `eval_dataset` may be a dict of several sets.
        probe_dataset: Such rows, or a file, with a column `subset` (`aligned` or `conflict`). See `ReadingProbe`.
        processing_class: The tokenizer; None takes the model's own.
        peft_config: Configuration of an adapter that is trained instead of all weights.
        refiner: Makes refined contexts for samples without one; None makes none.
        recipe: Recorded with the run; None derives one from the arguments.
        options: Further options of transformers' Trainer (`callbacks`, `optimizers`, …).

    Raises:
        UserError: as `load_inputs`, `UserInputs`, `choose_layout` and `attach_objective`.
    """

    # The loss is normalised by the whole accumulated batch; the Trainer must not divide it again.
    loss_is_scaled_for_ga = True
    train_dataset: Any
    data_collator: Any
    layout: Layout
    token_steps: TokenBudgetSteps | None = None
    depends_on = cached_property(other_models)  # computed at the first step, before the models can change
    _metrics_start: float | None = None  # seconds of training, evaluations left out

    @in_pythons_words
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
        options = without_unset(options)
        check_names("D2ETrainer", options, inspect.signature(Trainer).parameters)
        args = D2EConfig("trainer_output") if args is None else copy.copy(D2EConfig.of(args))
        name = name_of(model) if recipe is None else recipe.model.name
        loaded = load_inputs(model, args, processing_class, name, peft_config)
        self.inputs = given = UserInputs(loaded, args, name, train_dataset, eval_dataset, refiner)
        if args.ddp_find_unused_parameters is None:
            args.ddp_find_unused_parameters = may_leave_parameters_out(loaded.model)
        evaluated = given.evaluation_strategy(probe_dataset)
        checkpoints, args.save_total_limit = WholeCheckpoints(self, args.save_total_limit), None
        super().__init__(
            loaded.model,
            args,
            train_dataset=given.train_dataset,
            eval_dataset=given.eval_dataset,
            processing_class=loaded.tokenizer,
            **options,
        )
        args.eval_strategy = evaluated
        self.d2e = args.d2e
        self.laps = LapTimer(args.device)
        self.guard = StepGuard(self)
        with quietly(args.disable_tqdm):
            objective = setup.prepare_model(self, options.get("data_collator"))
        self._metrics = ObjectiveMetrics(self.d2e, objective.weights, args.device)
        self.held_out = HeldOut(self.d2e, objective.weights, args.device)
        recorded = given.train_dataset is not None
        self.record = RecordRun(self, train_dataset, eval_dataset, probe_dataset, recipe) if recorded else None
        setup.add_callbacks(self, checkpoints, self.record)

    @in_pythons_words
    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **options: Any) -> Any:
        """Like transformers', in a folder without a run unless it is resumed.

        Raises ProcessError if disk or memory is full, UserError if a loss or weight is NaN, or as `prepare_folder`.
        """
        if self.record is None or self.record.derives:  # d2e train has checked it
            resume_from_checkpoint = prepare_folder(self, resume_from_checkpoint)
        shown, attending = bars(shown=not self.args.disable_tqdm), without_cudnn_attention()  # in the backward, too
        with explaining_full_disk(self, Path(self.args.output_dir)), quietly(self.args.quiet), shown, attending:
            return super().train(resume_from_checkpoint, *args, **options)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write model and tokenizer so that a kill leaves either a whole model or none; raises like `train`."""
        if _internal_call:  # a part of a checkpoint, which is checked and sealed as a whole
            super().save_model(output_dir, _internal_call=True)
            return
        self.guard.check_weights()
        write, target = super().save_model, Path(output_dir or self.args.output_dir)
        with explaining_full_disk(self, target), bars(shown=not self.args.disable_tqdm):
            save_model_whole(self, target, lambda folder: write(folder, _internal_call=True))

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Like transformers'; a loader of whole steps with `micro_batch_tokens` or `rows_per_context`."""
        if not loads_whole_steps(self.args):
            return super().get_train_dataloader()
        loader, self.token_steps = step_loader(self)
        return loader

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Tensor]:
        """The micro-batches of a step, and their gold answer tokens summed over all processes."""
        self.laps.enter("data")
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        tokens = count_answers(batches, lambda counts: self.accelerator.gather(counts[None]).sum(dim=0), device)
        self.laps.enter("elsewhere")
        return batches, tokens

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
        """Like transformers', without cuDNN's attention."""
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
            self._metrics_start = self.held_out.trained()[0]
        repeated, _ = inputs.pop(REPEATED, False), inputs.pop(ROWS, None)
        rows = model_inputs(inputs)
        targets, counts = rows["targets"], counts_of(inputs)
        sums = model(**rows)
        if num_items_in_batch is None:  # a call outside the training loop: the micro-batch is all there is
            scale = torch.tensor(1.0 / len(targets), device=targets.device)
        else:  # gradients are averaged over processes, the count is summed over them
            scale = self.accelerator.num_processes / torch.as_tensor(num_items_in_batch, device=targets.device)
        if repeated:
            scale = torch.zeros_like(scale)
        elif self.model.training:  # not of a DeepSpeed engine, which is always in training mode
            if "pairs" in rows:
                sums["pair_scale"] = scale * rows["pairs"].tokens_per_pair
            self._metrics.update(sums, targets, counts, scale)
        else:
            self.held_out.update(sums, targets, counts)
        scaled = sums["loss"] * scale
        return (scaled, {}) if return_outputs else scaled

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Like transformers', summed over the micro-batches of a step."""
        return sum(super(D2ETrainer, self).floating_point_ops(part) for part in inputs.get("micro_batches", [inputs]))

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the objective's values, averaged since the last log and over processes."""
        if "loss" in logs:
            values, tokens = self._metrics.compute(self.accelerator)
            seconds = self.held_out.trained()[0] - (self._metrics_start or 0.0)
            self._metrics_start = None
            logs |= setup.logged_values(self, values, tokens / seconds)
        super().log(logs, start_time)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        # A head that is tied to the embeddings is stored once, as them.
        tied = getattr(self.model, "all_tied_weights_keys", {})
        load_result.missing_keys[:] = [name for name in load_result.missing_keys if name not in tied]
        super()._issue_warnings_after_load(load_result)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        # FSDP2 gathers a head that is tied to the embeddings once more.
        for name, source in getattr(self.model, "all_tied_weights_keys", {}).items():
            if state_dict and source in state_dict:
                state_dict.pop(name, None)
        with without_notes():
            super()._save(output_dir, state_dict)

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        # The Trainer checks max_steps only after a step: a resumed run that had ended would take one more.
        if self.state.global_step >= self.state.max_steps or setup.stopped_early(self.callback_handler.callbacks):
            self.control.should_training_stop = True
            return
        super()._run_epoch(*args, **kwargs)
