"""Probe during training: does the model use the context, or answer by habit?

A sample counts as correct if every token of its answer is the argmax, given the answer's tokens before it. Greedy
decoding gives this answer in exactly that case, so one forward pass replaces decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerCallback

from d2e_sft.config.d2e import D2ESection
from d2e_sft.data.chat_template import pad_id
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import EventSample
from d2e_sft.data.views import ViewEncoder
from d2e_sft.model.collation import IGNORE, model_inputs
from d2e_sft.model.forward import evaluating
from d2e_sft.model.packing_support import collator_for
from d2e_sft.train.rows import dataset_row, encode_samples
from d2e_sft.train.samples import DEBIASED, PLAIN, PREFIX, PROBED, probe_groups
from d2e_sft.util.progress import Progress

if TYPE_CHECKING:
    from d2e_sft.train.trainer import D2ETrainer

_COMPUTE = ("train_seconds", "train_cpu_seconds")  # as `trained_seconds` has them


class ReadingProbe(TrainerCallback):
    """Accuracy by subset, logged before the first step and at each evaluation.

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
