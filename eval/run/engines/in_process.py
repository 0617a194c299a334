"""The model in this process, by transformers and our own decoding."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Any

import torch
import transformers

from d2e_sft.data.chat_template import pad_id
from d2e_sft.decoding import OptionScore, decode_prompts, score_options, stop_token_ids
from d2e_sft.decoding.likelihood import KeptStates
from d2e_sft.model.compilation import check_compiler
from d2e_sft.model.device import is_out_of_memory
from d2e_sft.model.loading import load_model
from d2e_sft.model.positions import position_limit
from d2e_sft.util.errors import ProcessError
from eval.run.engines.engine import OnAnswers, Task, TokenPrompts
from eval.run.engines.option_task import OptionTask
from eval.run.journal_files import Answer
from eval.run.options import EvalConfig


class InProcessEngine:
    """Loads a model and decodes with it.

    Args:
        model: as for `d2e_sft.model.loading.load_model`.
        config: says the dtype, and whether the decoding step will be compiled, for which a compiler must be there.
        device: where it runs.
        kept: what scoring options keeps, for the tasks to come; None keeps nothing.

    Raises:
        UserError: the model cannot be loaded.
    """

    name = "transformers"

    def __init__(
        self, model: str, config: EvalConfig, device: torch.device, *, kept: KeptStates | None = None
    ) -> None:
        if config.decoding.compiled:
            check_compiler(device, asked_by="--compile", instead="drop it")
        section = config.section
        loaded = load_model(model, dtype=config.options.dtype or section.dtype, attention=section.attention)
        self._model, self._tokenizer = loaded.model, loaded.tokenizer
        self._model.to(device).eval()
        self._begun: tuple[Task, TokenPrompts] | None = None
        self._kept = kept
        self.counts: dict[str, int] = {}

    def begin(self, task: Task) -> Sequence[int]:
        config = self._model.config
        prompts = task.tokens(self._tokenizer, encoder_decoder=config.is_encoder_decoder, limit=position_limit(config))
        self._begun = task, prompts
        return [len(prompt) for prompt in prompts.originals]

    def decode(self, places: Sequence[int], on_answers: OnAnswers) -> None:
        assert self._begun is not None
        task, prompts = self._begun
        try:
            if isinstance(task, OptionTask):
                self._score(task, prompts, places, on_answers)
            else:
                self._generate(task, prompts, places, on_answers)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise _too_large(task, prompts, places, error) from error

    def _generate(self, task: Task, prompts: TokenPrompts, places: Sequence[int], on_answers: OnAnswers) -> None:
        groups = task.groups

        def on_batch(indices: list[int], answers: list[list[int]]) -> None:
            texts = self._tokenizer.batch_decode(answers, skip_special_tokens=True)
            decoded = zip([places[index] for index in indices], texts, strict=True)
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

    def _score(self, task: OptionTask, prompts: TokenPrompts, places: Sequence[int], on_answers: OnAnswers) -> None:
        assert prompts.options is not None
        assert prompts.given is not None
        groups = task.groups

        def on_batch(indices: list[int], scores: list[list[OptionScore]]) -> None:
            on_answers(task.answers([places[index] for index in indices], scores, prompts.truncated))

        score_options(
            self._model,
            [prompts.originals[place] for place in places],
            None if prompts.imagined is None else [prompts.imagined[place] for place in places],
            [prompts.options[place] for place in places],
            task.decoding,
            given=[prompts.given[place] for place in places],
            groups=[groups[place] for place in places],
            on_batch=on_batch,
            pad_id=pad_id(self._tokenizer),
            kept=self._kept,
        )

    def environment(self) -> dict[str, Any]:
        device = next(self._model.parameters()).device
        cuda = torch.cuda.get_device_name(device) if device.type == "cuda" else None
        return {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "device": f"{device.type} ({cuda or platform.processor() or platform.machine()})",
            "threads": torch.get_num_threads(),
            "dtype": str(self._model.dtype).removeprefix("torch."),
        }


def _too_large(task: Task, prompts: TokenPrompts, places: Sequence[int], error: BaseException) -> ProcessError:
    lengths = sorted((len(prompts.originals[place]) for place in places), reverse=True)
    batch, views = task.decoding.batch_size, "two views each" if prompts.imagined is not None else "one view each"
    said = str(error).strip().split("\n")[0][:200]
    return ProcessError(
        f"out of memory while decoding ({said}); batches of {batch} prompts, {views}, of up to {lengths[0]} tokens "
        f"(median {lengths[len(lengths) // 2]}), and {task.decoding.max_new_tokens} new tokens at most",
        remedy="a smaller --batch-size, --dtype bfloat16, fewer --max-new-tokens, --overlong truncate_context; or "
        "--engine vllm, which plans its memory",
    )
