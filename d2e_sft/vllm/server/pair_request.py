"""A server's request for a pair: SamplingParams with the prompt without context among their `extra_args`."""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping
from typing import Any

from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.decoding.pairs import PromptPair
from d2e_sft.util.errors import UserError
from d2e_sft.vllm.draw import Draw
from d2e_sft.vllm.pairing import check_decoder, check_sampling
from d2e_sft.vllm.requests import PairRequest

IMAGINED, ALPHA, DECODER, PLAUSIBILITY = "d2e_imagined", "d2e_alpha", "d2e_decoder", "d2e_plausibility"


def pair_request(engine: Any, prompt: Any, given: SamplingParams, sentinel: int) -> PairRequest:
    """Check a request and make it a pair.

    Args:
        engine: a `vllm.v1.engine.async_llm.AsyncLLM`.
        prompt: the original prompt, as an engine input of tokens.
        given: with `d2e_imagined` in its `extra_args`.

    Raises:
        VLLMValidationError: an option does not fit a pair.
    """
    if not isinstance(prompt, Mapping) or prompt.get("type") != "token":
        raise VLLMValidationError("context: needs a text prompt, without images, audio or embeddings")
    extra = given.extra_args or {}
    parameters = with_end_of_text(engine, given.clone())
    own = set() if parameters.ignore_eos else parameters.all_stop_token_ids
    stops = {*(parameters.stop_token_ids or ()), *own}
    limit = engine.vllm_config.model_config.max_model_len
    original, imagined = list(prompt["prompt_token_ids"]), extra[IMAGINED]
    if not (isinstance(imagined, list) and imagined and all(isinstance(id, int) and id >= 0 for id in imagined)):
        raise VLLMValidationError(f"{IMAGINED}: expected the token ids of a prompt", parameter=IMAGINED)
    room = limit - max(len(original), len(imagined))
    if room < 1:
        raise VLLMValidationError(
            f"prompts of {len(original)} and {len(imagined)} tokens (with and without context) leave no room for "
            f"an answer within the model's {limit} positions",
            parameter="messages",
        )
    try:
        draw = _draw(parameters)
        check_sampling(parameters)
        check_decoder(extra.get(DECODER, "d2e"))
        decoding = DecodingConfig(
            alpha=extra.get(ALPHA, math.nan),  # a missing ratio is rejected like a wrong one
            decoder=extra.get(DECODER, "d2e"),
            plausibility=extra.get(PLAUSIBILITY, 0.0),
            temperature=0.0 if draw is None else draw.temperature,
            max_new_tokens=min(parameters.max_tokens or room, room),
        )
        return PairRequest(
            PromptPair(original, imagined, alpha=decoding.alpha, name="the request"),
            decoding,
            stops=tuple(sorted(stops)),
            sentinel=sentinel,
            min_tokens=parameters.min_tokens,
            draw=draw,
        )
    except (ValueError, UserError) as error:
        raise VLLMValidationError(str(error)) from None


def with_end_of_text(engine: Any, parameters: SamplingParams) -> SamplingParams:
    """Add the model's own stop tokens, as the engine does for a request."""
    config = engine.vllm_config.model_config.try_get_generation_config()
    parameters.update_from_generation_config(config, engine.renderer.get_eos_token_id())
    return parameters


def _draw(parameters: SamplingParams) -> Draw | None:
    if parameters.temperature < 1e-5:  # greedy for vLLM
        return None
    seed = uuid.uuid4().int % (1 << 63) if parameters.seed is None else parameters.seed
    return Draw(
        temperature=parameters.temperature,
        seed=seed,
        top_k=max(0, parameters.top_k),
        top_p=parameters.top_p,
        min_p=parameters.min_p,
    )
