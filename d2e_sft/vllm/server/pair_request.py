"""A server's request for a pair, and the outputs that its caller sees.

The prompt without context is among the `extra_args` of the SamplingParams. vLLM's own detokeniser makes text and stop
strings of a pair's tokens.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.detokenizer import IncrementalDetokenizer

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.decoding.pairs import PromptPair
from d2e_sft.util.errors import UserError
from d2e_sft.vllm.pairing import Draw, RowView, check_decoder, check_sampling
from d2e_sft.vllm.requests import PairProgress, PairRequest

IMAGINED, ALPHA, DECODER, PLAUSIBILITY = "d2e_imagined", "d2e_alpha", "d2e_decoder", "d2e_plausibility"


def pair_request(engine: Any, prompt: Any, sampling: SamplingParams, sentinel: int) -> PairRequest:
    """Make a request with `d2e_imagined` in its `extra_args` a pair; `prompt` is the original one, as engine input."""
    if not isinstance(prompt, Mapping) or prompt.get("type") != "token":
        raise VLLMValidationError("context: needs a text prompt, without images, audio or embeddings")
    extra = sampling.extra_args or {}
    parameters = with_end_of_text(engine, sampling.clone())
    model_stops = set() if parameters.ignore_eos else parameters.all_stop_token_ids
    stops = {*(parameters.stop_token_ids or ()), *model_stops}
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


class PairStream:
    """Turns the tokens that a pair's answer gains into outputs.

    `prompt` is the original one, as an engine input of tokens; `parameters` have output kind, stop strings and special
    tokens. `stopped` is the stop string that has ended the answer.
    """

    def __init__(self, tokenizer: Any, request_id: str, prompt: Any, parameters: SamplingParams) -> None:
        self._id = request_id
        self._prompt = prompt
        self._kind = parameters.output_kind
        self._tokens: list[int] = []
        self._unsent: list[int] = []
        self._cached: int | None = None
        self.stopped: str | None = None
        request = SimpleNamespace(
            request_id=request_id,
            sampling_params=parameters,
            prompt_token_ids=prompt["prompt_token_ids"],
            prompt_embeds=None,
        )
        self._text = IncrementalDetokenizer.from_new_request(tokenizer if parameters.detokenize else None, request)

    def take(
        self, gained: Sequence[int], progress: PairProgress, output: RequestOutput, view: RowView
    ) -> Iterator[RequestOutput]:
        """Outputs for tokens that the answer has gained, except the last output."""
        if view == "original" and self._cached is None:
            self._cached = output.num_cached_tokens
        for token in gained:
            self._add(token, ended=False)
            if self.stopped:
                return
        if gained and not progress.complete and self._kind != RequestOutputKind.FINAL_ONLY:
            yield self._output(None, None)

    def last(self, progress: PairProgress) -> RequestOutput:
        """The output that ends the stream, with the reason."""
        if self.stopped:
            return self._output("stop", self.stopped)
        if progress.stopped_by is not None:
            self._add(progress.stopped_by, ended=True)
        stop = progress.outcome == "stop"
        return self._output("stop" if stop else "length", progress.stopped_by if stop else None)

    def _add(self, token: int, *, ended: bool) -> None:
        self._tokens.append(token)
        self._unsent.append(token)
        self.stopped = self._text.update([token], ended)

    def _output(self, reason: str | None, stop: int | str | None) -> RequestOutput:
        delta = self._kind == RequestOutputKind.DELTA
        completion = CompletionOutput(
            index=0,
            text=self._text.get_next_output_text(reason is not None, delta),
            token_ids=list(self._unsent if delta else self._tokens),
            cumulative_logprob=None,
            logprobs=None,
            finish_reason=reason,
            stop_reason=stop,
        )
        self._unsent = []
        return RequestOutput(
            request_id=self._id,
            prompt=self._prompt.get("prompt"),
            prompt_token_ids=self._prompt["prompt_token_ids"],
            prompt_logprobs=None,
            outputs=[completion],
            finished=reason is not None,
            num_cached_tokens=self._cached,
        )
