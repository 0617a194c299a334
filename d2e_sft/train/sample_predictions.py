"""A few held-out samples decoded at each evaluation while training, with and without debiasing, as a table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from d2e_sft.config.recipe import Recipe
from d2e_sft.data.sample import EventSample
from d2e_sft.decoding import DecodingConfig, answer_samples
from d2e_sft.train.prepare import choose_samples
from d2e_sft.train.trackers import log_table
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import write_whole

PREDICTIONS_FILE = "held_out_predictions.jsonl"


class SamplePredictions(TrainerCallback):
    """Decodes the same samples at every evaluation; to RUN/held_out_predictions.jsonl and to the trackers.

    Every process decodes all of them, in step, since sharded weights are gathered from all; the main one writes. A row
    has the step, what identifies the sample, its first accepted answer and what the model says: `plain`, and
    `debiased` where the model is decoded with an α above 0.

    Args:
        trainer: a `D2ETrainer`; its model is decoded in the precision that it is trained in.
        recipe: says how many samples, α, the wording, and the lengths of prompts and answers.
        samples: held-out ones; as many are taken from each dataset.
    """

    def __init__(self, trainer: Any, recipe: Recipe, samples: Sequence[EventSample]) -> None:
        self.trainer, self.recipe = trainer, recipe
        self.samples = choose_samples(samples, recipe.train.sample_predictions, recipe.train.seed)
        self.decoding = recipe.decoding
        self.file = Path(recipe.train.output_dir) / PREDICTIONS_FILE

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Decode, and keep the rows of this step."""
        answers = {"plain": self._decode(replace(self.decoding, alpha=0.0))}
        if self.decoding.alpha > 0:
            answers["debiased"] = self._decode(self.decoding)
        if not state.is_world_process_zero:
            return
        rows = [
            {
                "step": state.global_step,
                "id": sample.id,
                "dataset": sample.dataset,
                "relation": sample.relation,
                "format": sample.format,
                "question": sample.question,
                "answer": sample.answers[0],
                **{name: texts[i] for name, texts in answers.items()},
            }
            for i, sample in enumerate(self.samples)
        ]
        self._write(rows, state.global_step)
        log_table(self.trainer, "held_out_predictions", list(rows[0]), [list(row.values()) for row in rows])

    def _decode(self, decoding: DecodingConfig) -> list[str]:
        model = self.trainer.model
        training = model.training
        model.eval()
        with self.trainer.compute_loss_context_manager():
            answers = answer_samples(
                model,
                self.trainer.processing_class,
                self.samples,
                decoding,
                prompt_set=self.recipe.data.prompt_set,
                max_length=self.recipe.data.max_length,
            )
        model.train(training)
        # ZeRO-3 has fetched what it expected to need for a next token, and would keep it.
        release = getattr(self.trainer.model_wrapped, "empty_partition_cache", None)
        if release is not None:
            release()
        return answers

    def _write(self, rows: Sequence[dict[str, Any]], step: int) -> None:
        """Add the rows; those of this and later steps are of a run that was killed and goes on from before them."""
        # Not splitlines(): a text may hold a line separator that JSON leaves as it is.
        before = self.file.read_text(encoding="utf-8").split("\n") if self.file.exists() else []
        kept = [line for number, line in enumerate(before, 1) if line and self._step(line, number) < step]
        lines = [*kept, *(json.dumps(row, ensure_ascii=False) for row in rows)]
        write_whole(self.file, "\n".join(lines) + "\n")

    def _step(self, line: str, number: int) -> int:
        try:
            return int(json.loads(line)["step"])
        except (ValueError, KeyError, TypeError):
            raise UserError(
                f"{self.file}, line {number}: not a row of predictions with its step: {line[:80]!r}",
                remedy="move the file away; it is only written to, and the run goes on without it",
            ) from None
