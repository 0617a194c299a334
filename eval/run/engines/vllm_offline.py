"""The model inside vLLM, with its paged cache, continuous batching and tensor parallelism."""

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.decoding.pairs import TokenPair
from d2e_sft.model.loading import load_tokenizer, position_limit
from d2e_sft.model.storage.folder import base_of_adapter, resolve_name
from d2e_sft.util.errors import UserError
from eval.run.engines.engine import EngineReply
from eval.run.options import EvalOptions
from eval.run.task import Task, encode


class VllmEngine:
    """Loads a model, named as for `load_model`, into vLLM at the first prompt, and decodes pairs with it."""

    name = "vllm"
    in_turn = False

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
            importlib.import_module("vllm")
        except ImportError as error:
            raise UserError(
                f"--engine vllm: vLLM cannot be imported ({error})",
                "in a separate environment: pip install -e '.[vllm]' in the clone; or use another --engine",
            ) from None
        self._offline = importlib.import_module("d2e_sft.vllm.offline")
        self._loaded: Any = None
        self._end_of_turn = 0
        self.counts = {"resubmissions": 0}

    def prepare(self, task: Task) -> Sequence[TokenPair]:
        temperature = task.decoding.temperature
        if temperature > 0:
            raise UserError(
                f"{task.title}: is sampled (temperature {temperature:g}), and --engine vllm decodes greedily",
                remedy="use --engine transformers, or ask a vLLM server: --engine openai --base-url URL",
            )
        # An option is sent as the end of a prompt, after which vLLM requires one new token.
        limit = None if self._limit is None else self._limit - (1 if task.likelihood else 0)
        pairs, self._end_of_turn = encode(task, self._tokenizer, limit=limit)
        self.counts = {"resubmissions": 0}
        return pairs

    def generate(self, pairs: Sequence[TokenPair], decoding: DecodingConfig) -> Iterator[EngineReply]:
        llm = self._llm()
        stop_ids = self._offline.stop_ids_of(llm, self._end_of_turn)
        # vLLM stops at tokens: those that begin with a text that ends an answer. `Task.answer` cuts at the others.
        if texts := tuple(decoding.stop_strings):
            tokens = self._tokenizer.batch_decode([[token] for token in range(len(self._tokenizer))])
            stop_ids = sorted({*stop_ids, *(i for i, token in enumerate(tokens) if token.startswith(texts))})
            decoding = replace(decoding, stop_strings=())
        for output in self._offline.generate(llm, pairs, decoding, stop_ids=stop_ids):
            self.counts["resubmissions"] += output.resubmissions
            yield EngineReply(output.index, output.text)

    def score(self, pairs: Sequence[TokenPair], decoding: DecodingConfig) -> Iterator[EngineReply]:
        for index, scores in self._offline.score(self._llm(), pairs):
            yield EngineReply(index, scores)

    def environment(self) -> dict[str, Any]:
        import torch

        return {
            "torch": torch.__version__,
            "vllm": importlib.import_module("vllm").__version__,
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
            **self._options,
        }

    def _llm(self) -> Any:
        if self._loaded is None:
            self._loaded = self._offline.load_llm(self._model, dtype=self._dtype, **self._options)
        return self._loaded


def _positions(source: str) -> int | None:
    """Positions of the model, or of the base under an adapter."""
    from transformers import AutoConfig

    base = base_of_adapter(Path(source))
    if base is not None:
        return _positions(resolve_name(base))
    return position_limit(AutoConfig.from_pretrained(source, trust_remote_code=False))
