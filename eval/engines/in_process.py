"""The model in this process, by transformers and our own decoding."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Any

import torch
import transformers

import d2e_sft
from d2e_sft.compilation import check_compiler
from d2e_sft.decoding import decode_prompts, stop_token_ids
from d2e_sft.loading import load_model
from d2e_sft.recipe import ModelSection
from d2e_sft.views import pad_id
from eval.engines.engine import OnAnswers, Task
from eval.engines.token_prompts import token_prompts
from eval.progress import Answer


class InProcessEngine:
    """Loads a model and decodes with it.

    Args:
        model: as for `d2e_sft.loading.load_model`.
        section: how it was trained: attention, and dtype unless `dtype` says otherwise.
        device: where it runs.
        compiled: compile the decoding step.

    Raises:
        UserError: the model cannot be loaded, has no chat template, or samples exceed its context.
    """

    name = "transformers"

    def __init__(
        self,
        model: str,
        task: Task,
        *,
        section: ModelSection,
        dtype: str | None,
        device: torch.device,
        compiled: bool = False,
    ) -> None:
        if compiled:
            check_compiler(device, asked_by="--compile", instead="drop it")
        loaded = load_model(model, dtype=dtype or section.dtype, attention=section.attention)
        config = loaded.model.config
        self._model, self._tokenizer, self._task = loaded.model, loaded.tokenizer, task
        self._prompts = token_prompts(
            loaded.tokenizer,
            task,
            encoder_decoder=config.is_encoder_decoder,
            limit=getattr(config.get_text_config(), "max_position_embeddings", None),
        )
        self._compiled = compiled
        self._model.to(device).eval()

    def lengths(self) -> Sequence[int]:
        return [len(prompt) for prompt in self._prompts.originals]

    def decode(self, indices: Sequence[int], on_answers: OnAnswers) -> None:
        prompts, task = self._prompts, self._task
        groups = task.groups

        def on_batch(places: list[int], answers: list[list[int]]) -> None:
            on_answers([self._answer(indices[place], tokens) for place, tokens in zip(places, answers, strict=True)])

        decode_prompts(
            self._model,
            [prompts.originals[i] for i in indices],
            None if prompts.imagined is None else [prompts.imagined[i] for i in indices],
            batch_size=task.batch_size,
            groups=[groups[i] for i in indices],
            on_batch=on_batch,
            alpha=task.alpha,
            max_new_tokens=task.max_new_tokens,
            stop_ids=stop_token_ids(self._model, prompts.end_of_turn),
            pad_id=pad_id(self._tokenizer),
            compiled=self._compiled,
        )

    def environment(self) -> dict[str, Any]:
        device = next(self._model.parameters()).device
        cuda = torch.cuda.get_device_name(device) if device.type == "cuda" else None
        return {
            "d2e_sft": d2e_sft.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "device": f"{device.type} ({cuda or platform.processor() or platform.machine()})",
            "threads": torch.get_num_threads(),
            "dtype": str(self._model.dtype).removeprefix("torch."),
        }

    def counts(self) -> dict[str, int]:
        return {}

    def _answer(self, index: int, tokens: list[int]) -> Answer:
        text = self._tokenizer.decode(tokens, skip_special_tokens=True)
        return Answer(index, text, index in self._prompts.truncated)
