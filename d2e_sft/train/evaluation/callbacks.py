"""Held-out samples decoded during training, and tables for trackers, which transformers' own callbacks do not send."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from transformers.integrations import TensorBoardCallback

from d2e_sft.config.recipe import Recipe
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import EventSample
from d2e_sft.train.evaluation.answers import Answers, decode
from d2e_sft.train.run_folder import PREDICTIONS_FILE
from d2e_sft.train.samples import choose_samples
from d2e_sft.util.files import write_whole
from d2e_sft.util.table import Table


def trackers_with_tables(report_to: Sequence[str]) -> list[Any]:
    """Modules of the trackers that have tables and a configuration; both are used alike."""
    return [import_module(name) for name in ("wandb", "trackio") if name in report_to]


def log_table(trainer: Any, name: str, rows: Sequence[dict[str, Any]]) -> None:
    """Send a table to wandb and trackio, and as Markdown to tensorboard; only the main process calls it."""
    step, report_to = trainer.state.global_step, trainer.args.report_to
    columns, values = list(rows[0]), [list(row.values()) for row in rows]
    for tracker in trackers_with_tables(report_to):
        tracker.log({name: tracker.Table(columns=columns, data=values), "train/global_step": step})
    if "tensorboard" in report_to:
        callbacks = trainer.callback_handler.callbacks
        writer = next((c.tb_writer for c in callbacks if isinstance(c, TensorBoardCallback)), None)
        if writer is not None:
            writer.add_text(name, Table.of(columns, values).markdown(), step)


class SamplePredictions:
    """Decodes the same samples at every evaluation, for RUN/held_out_predictions.jsonl, the trackers, EM and F1.

    The main process writes. A row has the step, the sample's keys, its first accepted answer and the model's answers:
    `plain`, and `debiased` if the model is decoded with α > 0.

    Args:
        trainer: A `D2ETrainer`; its model is decoded in the precision of training.
        recipe: Sets the number of samples, α, the wording, and the lengths of prompts and answers.
        samples: Held-out samples; `train.sample_predictions` of them are taken, evenly from the datasets.
    """

    def __init__(self, trainer: Any, recipe: Recipe, samples: Sequence[EventSample]) -> None:
        self.trainer, self.recipe = trainer, recipe
        self.samples = choose_samples(samples, recipe.train.sample_predictions, recipe.train.seed)
        self.decoding, self.wording = recipe.decoding, load_prompt_set(recipe.data.prompt_set, recipe.data.form)
        self.file = Path(recipe.train.output_dir) / PREDICTIONS_FILE

    def measure(self) -> dict[str, float]:
        """Decode and write the rows of this step; return the mean `em` and `f1`."""
        answers = {"plain": decode(self.trainer, self.samples, replace(self.decoding, alpha=0.0))}
        if self.decoding.needs_imagined:
            answers["debiased"] = decode(self.trainer, self.samples, self.decoding)
        if self.trainer.state.is_world_process_zero:
            self._keep(answers, self.trainer.state.global_step)
        return Answers.read(answers.get("debiased", answers["plain"]), self.samples, self.wording).scores()

    def _keep(self, answers: dict[str, list[str]], step: int) -> None:
        kept_keys = {"id", "dataset", "relation", "format", "question"}
        rows = [
            {
                "step": step,
                **sample.model_dump(include=kept_keys),
                "answer": sample.answers[0],
                **{name: texts[i] for name, texts in answers.items()},
            }
            for i, sample in enumerate(self.samples)
        ]
        # Rows of this and later steps were written before a resumption. Not splitlines(): a text may contain a line
        # separator that JSON leaves as it is.
        before = self.file.read_text(encoding="utf-8").split("\n") if self.file.exists() else []
        kept = [line for line in before if line and json.loads(line)["step"] < step]
        lines = [*kept, *(json.dumps(row, ensure_ascii=False) for row in rows)]
        write_whole(self.file, "\n".join(lines) + "\n")
        log_table(self.trainer, "held_out_predictions", rows)
