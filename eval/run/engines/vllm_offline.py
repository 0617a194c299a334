"""The model inside vLLM, with its paged cache, continuous batching and tensor parallelism."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from d2e_sft.decoding import OptionScore
from d2e_sft.model.loading import load_tokenizer, resolve_name
from d2e_sft.model.positions import position_limit
from d2e_sft.util.errors import UserError
from eval.run.engines.engine import OnAnswers, Task, TokenPrompts
from eval.run.engines.option_task import OptionTask
from eval.run.journal_files import Answer
from eval.run.options import EvalOptions

# Answers are appended to the disk in batches of so many, as one at a time would wait for the disk.
_APPENDED_TOGETHER = 16


class VllmEngine:
    """Loads a model into vLLM, once there is something to decode, and decodes pairs of requests with it.

    Args:
        model: as for `d2e_sft.model.loading.load_model`.
        options: says the dtype, and vLLM's own options.

    Raises:
        UserError: vLLM is not installed or cannot have the model.
    """

    name = "vllm"

    def __init__(self, model: str, options: EvalOptions) -> None:
        tokenizer, encoder_decoder = load_tokenizer(model)
        source = resolve_name(model)
        if encoder_decoder:
            raise UserError(
                f"model {model!r} with --engine vllm: is an encoder-decoder; expected a causal model",
                remedy="use --engine transformers",
            )
        self._model, self._tokenizer = model, tokenizer
        self._dtype, self._options = options.dtype or "auto", options.vllm
        self._limit = self._options.get("max_model_len") or _positions(source)
        try:
            self._offline = importlib.import_module("d2e_sft.vllm.offline")
        except ImportError as error:
            raise UserError(
                f"--engine vllm: vLLM cannot be imported ({error})",
                "install it in an environment of its own (pip install 'd2e-sft[vllm]'), or use another --engine",
            ) from None
        self._llm: Any = None
        self._begun: tuple[Task, TokenPrompts] | None = None
        self.counts = {"resubmissions": 0}

    def begin(self, task: Task) -> Sequence[int]:
        temperature = task.decoding.temperature
        if temperature > 0:
            raise UserError(
                f"{task.title}: is sampled (temperature {temperature:g}), and --engine vllm decodes greedily",
                remedy="use --engine transformers, or ask a vLLM server: --engine openai --base-url URL",
            )
        # To score an option is to send it as a prompt's end, behind which vLLM insists on a token.
        spare = 1 if isinstance(task, OptionTask) else 0
        limit = None if self._limit is None else self._limit - spare
        prompts = task.tokens(self._tokenizer, encoder_decoder=False, limit=limit)
        self._begun = task, prompts
        self.counts = {"resubmissions": 0}
        return [len(prompt) for prompt in prompts.originals]

    def decode(self, places: Sequence[int], on_answers: OnAnswers) -> None:
        assert self._begun is not None
        task, prompts = self._begun
        if self._llm is None:
            self._llm = self._offline.load_llm(self._model, dtype=self._dtype, **self._options)
        if isinstance(task, OptionTask):
            self._score(task, prompts, places, on_answers)
            return
        imagined = prompts.imagined
        waiting: list[Answer] = []

        def on_finished(index: int, tokens: Sequence[int]) -> None:
            place = places[index]
            text = self._tokenizer.decode(list(tokens), skip_special_tokens=True)
            waiting.append(Answer(place, text, place in prompts.truncated))
            if len(waiting) >= _APPENDED_TOGETHER:
                on_answers(waiting.copy())
                waiting.clear()

        def on_resubmission(index: int) -> None:
            self.counts["resubmissions"] += 1

        try:
            self._offline.generate_debiased(
                self._llm,
                [prompts.originals[place] for place in places],
                None if imagined is None else [imagined[place] for place in places],
                task.decoding,
                stop_ids=self._offline.stop_ids_of(self._llm, prompts.end_of_turn),
                on_finished=on_finished,
                on_resubmission=on_resubmission,
            )
        finally:
            if waiting:
                on_answers(waiting)

    def _score(self, task: OptionTask, prompts: TokenPrompts, places: Sequence[int], on_answers: OnAnswers) -> None:
        assert prompts.options is not None
        assert prompts.given is not None

        def on_scored(indices: list[int], scores: list[list[OptionScore]]) -> None:
            on_answers(task.answers([places[index] for index in indices], scores, prompts.truncated))

        importlib.import_module("d2e_sft.vllm.likelihood").score_options(
            self._llm,
            [prompts.originals[place] for place in places],
            [prompts.options[place] for place in places],
            given=[prompts.given[place] for place in places],
            on_scored=on_scored,
        )

    def environment(self) -> dict[str, Any]:
        import torch

        return {
            "torch": torch.__version__,
            "vllm": importlib.import_module("vllm").__version__,
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
            **self._options,
        }


def _positions(source: str) -> int | None:
    """Of the model, or of the one under an adapter."""
    from transformers import AutoConfig

    adapter = Path(source) / "adapter_config.json"
    if adapter.is_file():
        return _positions(resolve_name(json.loads(adapter.read_text("utf-8"))["base_model_name_or_path"]))
    return position_limit(AutoConfig.from_pretrained(source, trust_remote_code=False))
