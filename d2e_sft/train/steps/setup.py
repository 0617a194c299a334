"""Parts of the set-up of a `D2ETrainer`: its model and rows, its callbacks, and the record of its run."""

from __future__ import annotations

from typing import Any

from transformers import EarlyStoppingCallback
from transformers.trainer_callback import ProgressCallback

from d2e_sft.data.chat_template import pad_id
from d2e_sft.model.compilation import compile_layers
from d2e_sft.model.packing_support import choose_layout, collator_for
from d2e_sft.objective.attach import attach_objective
from d2e_sft.objective.bias_model import BiasModel, FrozenCollator, numbered
from d2e_sft.objective.terms import Objective
from d2e_sft.train.arguments.record import RecordRun
from d2e_sft.train.checkpoints import WholeCheckpoints
from d2e_sft.train.evaluation.callbacks import SamplePredictions
from d2e_sft.train.evaluation.probe import ReadingProbe, of_both_subsets
from d2e_sft.train.steps.loop import StepActions, apply_liger, keep_sums_in_float32
from d2e_sft.train.steps.progress import LossLines
from d2e_sft.train.steps.safeguards import NumberedBatches


def prepare_model(trainer: Any, collator: Any) -> Objective:
    """Choose the layout for the model on its device, attach the objective, and number the rows.

    Args:
        collator: of the user; None takes the layout's.

    Raises:
        UserError: as `choose_layout`, `attach_objective` and `BiasModel.of`.
    """
    args, model, d2e = trainer.args, trainer.model, trainer.d2e
    trainer.model_accepts_loss_kwargs = False  # answer tokens are counted in get_batch_samples
    keep_sums_in_float32(trainer.accelerator.state)
    if args.use_liger_kernel:
        apply_liger(model, args)
    tokenizer = trainer.processing_class
    with trainer.compute_loss_context_manager():
        trainer.layout = layout = choose_layout(model, d2e, args.packing, args.attention)
        bias = BiasModel.of(d2e, model, layout, tokenizer) if d2e.frozen_views else None
    padding = pad_id(tokenizer) if tokenizer else 0
    trainer.data_collator = collator or collator_for(layout, d2e, model.config, padding)
    head = None if bias is None else bias.head
    objective = attach_objective(model, d2e, through_logits=layout.through_logits, bias_head=head)
    rows, held_out = trainer.train_dataset, trainer.eval_dataset
    if hasattr(rows, "__len__"):
        trainer.train_dataset = numbered(rows)
    if bias is not None:  # its states for all rows are computed here, and added to batches
        given = [row for dataset in (rows, held_out) if dataset is not None for row in dataset]
        trainer.eval_dataset = None if held_out is None else numbered(held_out, len(rows) if rows is not None else 0)
        with trainer.compute_loss_context_manager():
            states = bias.states(d2e, given, pad_token_id=padding, batch_size=args.per_device_eval_batch_size)
        trainer.data_collator = FrozenCollator(trainer.data_collator, states)
    trainer.data_collator = NumberedBatches(trainer.data_collator)
    if args.compile_layers:
        compile_layers(model)
    return objective


def add_callbacks(trainer: Any, checkpoints: WholeCheckpoints) -> None:
    """Add the callbacks of every training; checks come after those that decide about logs and checkpoints."""
    for callback in (StepActions(trainer), trainer.guard, checkpoints):
        trainer.add_callback(callback)
    if any(type(callback) is ProgressCallback for callback in trainer.callback_handler.callbacks):
        trainer.remove_callback(ProgressCallback)
        trainer.add_callback(LossLines)
    if trainer.args.early_stopping_patience is not None:
        patience, threshold = trainer.args.early_stopping_patience, trainer.args.early_stopping_threshold
        trainer.add_callback(EarlyStoppingCallback(patience, threshold))


def add_record(trainer: Any, record: RecordRun) -> None:
    """Record the run, and decode held-out samples and probe at its evaluations."""
    inputs = trainer.inputs
    trainer.add_callback(record)
    trainer.guard.sample_names = [f"{sample.id} of {sample.dataset}" for sample in inputs.training.samples]
    if inputs.held_out is not None and record.recipe.train.sample_predictions:
        trainer.held_out.measures.append(SamplePredictions(trainer, record.recipe, inputs.held_out.samples).measure)
    if record.probe is not None:
        probe = ReadingProbe(trainer, record.recipe, of_both_subsets(record.probe, "probe_dataset"))
        trainer.add_callback(probe)
        trainer.held_out.measures.append(probe.measure)
