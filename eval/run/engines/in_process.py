"""The model in this process, by transformers and our own decoding."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Any

import torch
import transformers

import d2e_sft
from d2e_sft.config.recipe import ModelSection
from d2e_sft.data.chat_template import pad_id
from d2e_sft.decoding import decode_prompts, stop_token_ids
from d2e_sft.model.compilation import check_compiler
from d2e_sft.model.loading import load_model
from d2e_sft.model.positions import position_limit
from eval.run.engines.engine import OnAnswers
from eval.run.engines.task import Task, TokenPrompts
from eval.run.journal_files import Answer


class InProcessEngine:
    """Loads a model and decodes with it.

    Args:
        model: as for `d2e_sft.model.loading.load_model`.
        section: how it was trained: attention, and dtype unless `dtype` says otherwise.
        device: where it runs.
        compiled: the decoding step will be compiled, for which a compiler must be there.

    Raises:
        UserError: the model cannot be loaded.
    """

    name = "transformers"

    def __init__(
        self,
        model: str,
        *,
        section: ModelSection,
        dtype: str | None,
        device: torch.device,
        compiled: bool = False,
    ) -> None:
        if compiled:
            check_compiler(device, asked_by="--compile", instead="drop it")
        loaded = load_model(model, dtype=dtype or section.dtype, attention=section.attention)
        self._model, self._tokenizer = loaded.model, loaded.tokenizer
        self._model.to(device).eval()
        self._begun: tuple[Task, TokenPrompts] | None = None

    def begin(self, task: Task) -> Sequence[int]:
        config = self._model.config
        limit = position_limit(config)
        prompts = task.tokens(self._tokenizer, encoder_decoder=config.is_encoder_decoder, limit=limit)
        self._begun = task, prompts
        return [len(prompt) for prompt in prompts.originals]

    def decode(self, places: Sequence[int], on_answers: OnAnswers) -> None:
        assert self._begun is not None
        task, prompts = self._begun
        groups = task.groups

        def on_batch(indices: list[int], answers: list[list[int]]) -> None:
            texts = self._tokenizer.batch_decode(answers, skip_special_tokens=True)
            decoded = [(places[index], text) for index, text in zip(indices, texts, strict=True)]
            on_answers([Answer(place, text, place in prompts.truncated) for place, text in decoded])

        decode_prompts(
            self._model,
            [prompts.originals[place] for place in places],
            None if prompts.imagined is None else [prompts.imagined[place] for place in places],
            task.decoding,
            groups=[groups[place] for place in places],
            on_batch=on_batch,
            stop_ids=stop_token_ids(self._model, prompts.end_of_turn),
            pad_id=pad_id(self._tokenizer),
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
