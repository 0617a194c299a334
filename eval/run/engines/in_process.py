"""The model in this process, with transformers and our own decoding."""

import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import transformers

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.decoding import generate, score, stop_token_ids
from d2e_sft.decoding.generation import check_beams
from d2e_sft.decoding.likelihood import KeptStates
from d2e_sft.decoding.pairs import TokenPair
from d2e_sft.decoding.rows import MOST_PAIRS
from d2e_sft.model.device import is_out_of_memory
from d2e_sft.model.layers import check_compiler, ready_to_decode
from d2e_sft.model.loading import load_model, position_limit
from d2e_sft.util.errors import ProcessError
from eval.run.engines.engine import EngineReply
from eval.run.options import EvalConfig
from eval.run.task import Task, encode


class InProcessEngine:
    """Loads a model, named as for `d2e_sft.model.loading.load_model`, and decodes with it.

    `kept` are hidden states of scored options, for later tasks with the same prompts, or None.
    """

    name = "transformers"
    in_turn = True

    def __init__(
        self, model: str, config: EvalConfig, device: torch.device, *, kept: KeptStates | None = None
    ) -> None:
        if config.decoding.compiled:
            check_compiler(device, asked_by="--compile", instead="drop it")
        section = config.section
        loaded = load_model(model, dtype=config.options.dtype or section.dtype, attention=section.attention)
        check_beams(loaded.model, config.decoding)
        self._model, self._tokenizer = ready_to_decode(loaded.model, device), loaded.tokenizer
        self._stop_ids: list[int] = []
        self._kept = kept
        self.counts: dict[str, int] = {}

    def prepare(self, task: Task) -> Sequence[TokenPair]:
        config = self._model.config
        limit, encoder_decoder = position_limit(config), config.is_encoder_decoder
        pairs, end_of_turn = encode(task, self._tokenizer, encoder_decoder=encoder_decoder, limit=limit)
        self._stop_ids = stop_token_ids(self._model, end_of_turn)
        return pairs

    def generate(self, pairs: Sequence[TokenPair], decoding: DecodingConfig) -> Iterator[EngineReply]:
        with _reporting_memory(pairs, decoding):
            for output in generate(self._model, self._tokenizer, pairs, decoding, stop_ids=self._stop_ids):
                if output.ended:
                    yield EngineReply(output.index, output.text, _prompt_tokens(pairs[output.index]))
                else:
                    yield EngineReply(output.index, None, 1)

    def score(self, pairs: Sequence[TokenPair], decoding: DecodingConfig) -> Iterator[EngineReply]:
        with _reporting_memory(pairs, decoding):
            for index, scores in score(self._model, pairs, decoding, kept=self._kept):
                tokens = _prompt_tokens(pairs[index]) + sum(option.tokens for option in scores)
                yield EngineReply(index, scores, tokens)

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


def _prompt_tokens(pair: TokenPair) -> int:
    return len(pair.original) + len(pair.imagined or ())


@contextmanager
def _reporting_memory(pairs: Sequence[TokenPair], decoding: DecodingConfig) -> Iterator[None]:
    """Turn a lack of memory into an error with the sizes that matter."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        longest, reason = max(len(pair.original) for pair in pairs), str(error).strip().split("\n")[0][:200]
        raise ProcessError(
            f"out of memory while decoding ({reason}); up to {decoding.batch_size or MOST_PAIRS} prompts of up to "
            f"{longest} tokens, at most {decoding.max_new_tokens} new tokens",
            remedy="a smaller --batch-size, --dtype bfloat16, a lower --max-new-tokens, --overlong truncate_context; "
            "or --engine vllm, which plans its memory",
        ) from error
