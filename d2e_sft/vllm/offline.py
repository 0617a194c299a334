"""Debiased decoding of many prompts on a `vllm.LLM`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

from d2e_sft.config.decoding import RECORDED, DecodingConfig
from d2e_sft.data.chat_template import merged_stop_ids
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import EventSample
from d2e_sft.data.views import ViewEncoder
from d2e_sft.decoding.generation import sample_pairs
from d2e_sft.decoding.pairs import Output, TokenPair, finished, resolved
from d2e_sft.util.errors import UserError
from d2e_sft.vllm.engine import (
    check_engine,
    check_probe,
    choose_sentinel,
    model_folder,
    require_vllm,
    unregistered_plugin,
)
from d2e_sft.vllm.pairing import check_decoder
from d2e_sft.vllm.requests import PairRequest, probe_parameters

require_vllm()

from vllm import LLM  # noqa: E402
from vllm.inputs.engine import tokens_input  # noqa: E402

from d2e_sft.vllm.batch import RequestBatch  # noqa: E402

# Options that are used here, or have no effect: greedy decoding draws nothing, and the engine makes its own batches.
_SUPPORTED = frozenset({*RECORDED, "max_new_tokens", "batch_size", "compiled", "seed", "top_k", "top_p"})


def load_llm(model: str, *, gpu_memory_utilization: float | None = None, **options: Any) -> LLM:
    """A vLLM engine that can decode pairs.

    Args:
        model: a run folder, another checkpoint, an adapter (merged into its base model in the cache), a Hub name or
            `builtin:…`.
        gpu_memory_utilization: share of the device's memory; None: vLLM's default.
        **options: vLLM's engine options, such as `dtype`, `tensor_parallel_size` and `max_model_len`.

    Raises:
        UserError: no such model, or options that cannot decode pairs.
    """
    if plugins := [*(options.pop("logits_processors", None) or []), *unregistered_plugin()]:
        options["logits_processors"] = plugins
    if gpu_memory_utilization is not None:
        options["gpu_memory_utilization"] = gpu_memory_utilization
    # Parted pairs go first, while the cache holds their prompts.
    llm = LLM(model=model_folder(model), **{"scheduling_policy": "priority", **options})
    check_engine(llm.llm_engine.vllm_config)
    return llm


def generate(
    llm: LLM,
    pairs: Sequence[TokenPair],
    decoding: DecodingConfig = DecodingConfig(),
    *,
    stop_ids: Sequence[int],
) -> Iterator[Output]:
    """Decode many pairs debiased (PIPER paper, equation 6); yields each complete output as it comes.

    Args:
        llm: An engine. Keep prefix caching on, as resubmitted pairs read their prompts from the cache.
        pairs: Prompts as token ids; each is two requests, or one if it is decoded plainly.
        decoding: Decoder, longest answer and plausibility.
        stop_ids: Tokens that end an answer; they are not part of the result.

    Raises:
        UserError: the engine cannot decode pairs, or never computes some pair in one step. A prompt is too long.
            `decoding` has a temperature, stop strings or a custom decoder, which are not supported.
        ValueError: an imagined prompt is missing, or a prompt has no token.
    """
    return RequestBatch(llm, requests_of(llm, pairs, decoding, stop_ids)).run()


def requests_of(
    llm: LLM, pairs: Sequence[TokenPair], decoding: DecodingConfig, stop_ids: Sequence[int]
) -> list[PairRequest]:
    """Check pairs against the engine and make their requests; arguments and errors as for `generate`."""
    check_decoder(decoding.decoder)
    for option in fields(decoding):
        value = getattr(decoding, option.name)
        if option.name not in _SUPPORTED and value != option.default:
            raise UserError(
                f"{option.name}={value!r}: debiased decoding in vLLM offline is greedy and stops only at tokens",
                remedy="decode in process (d2e_sft.decoding), or ask a server (d2e serve)",
            )
    pairs, config = resolved(pairs, decoding), llm.llm_engine.vllm_config
    longest = max((len(prompt) for pair in pairs for prompt in (pair.original, pair.imagined or ())), default=0)
    if longest + decoding.max_new_tokens > config.model_config.max_model_len:
        raise UserError(
            f"the longest prompt has {longest} tokens, plus {decoding.max_new_tokens} new ones; expected at most the "
            f"engine's {config.model_config.max_model_len} positions",
            remedy="raise max_model_len if the model allows it, lower max_new_tokens, or shorten the contexts",
        )
    stops, sentinel = tuple(stop_ids), -1
    if any(pair.imagined is not None for pair in pairs):
        check_engine(config)
        sentinel = choose_sentinel(llm.get_tokenizer(), config.model_config.get_vocab_size(), set(stops))
        if not getattr(llm, "_d2e_probed", False):  # one token, once per engine
            [output] = llm.generate([tokens_input([0])], probe_parameters(sentinel), use_tqdm=False)
            check_probe(list(output.outputs[0].token_ids), sentinel)
            llm._d2e_probed = True
    return [PairRequest(pair, decoding, stops, sentinel) for pair in pairs]


def answer_samples(
    llm: LLM,
    samples: Sequence[EventSample],
    decoding: DecodingConfig = DecodingConfig(),
    *,
    prompt_set: str = "default",
) -> list[str]:
    """Answer samples, decoded debiased; a sample without context is decoded plainly.

    Args:
        llm: from `load_llm`.
        prompt_set: wording, by name or as a YAML file.

    Returns:
        one text per sample, in order.

    Raises:
        UserError: as for `generate`; or the model has no chat template.
    """
    tokenizer: Any = llm.get_tokenizer()
    encoder = ViewEncoder(tokenizer, load_prompt_set(prompt_set), ("original", "imagined"))
    stop_ids = stop_ids_of(llm, encoder.end_of_turn)
    return [
        output.text for output in finished(generate(llm, sample_pairs(encoder, samples), decoding, stop_ids=stop_ids))
    ]


def stop_ids_of(llm: LLM, end_of_turn: int) -> list[int]:
    """The end-of-turn token and the stop tokens of the model's generation config."""
    config = llm.llm_engine.vllm_config.model_config
    return merged_stop_ids(config.try_get_generation_config().get("eos_token_id"), end_of_turn)
