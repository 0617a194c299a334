"""An engine client that decodes pairs: vLLM's `AsyncLLM` with one more kind of request.

A request becomes a pair if its `extra_args` hold `d2e_imagined` (the token ids of the prompt without context) and
`d2e_alpha` or `d2e_decoder`. The caller sees one stream of outputs, as for any request. Everything else passes
through, so vLLM's own serving code runs on it unchanged. vLLM's own detokeniser makes text and stop strings of a
pair's tokens.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from types import SimpleNamespace
from typing import Any

from vllm import SamplingParams
from vllm.exceptions import GenerationError, GracefulHTTPError, VLLMValidationError
from vllm.inputs.engine import tokens_input
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.detokenizer import IncrementalDetokenizer

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.data.chat_template import check_template
from d2e_sft.decoding.pairs import PromptPair
from d2e_sft.util.errors import UserError
from d2e_sft.vllm.engine import check_engine, check_probe, choose_sentinel
from d2e_sft.vllm.pairing import Draw, RowView, check_decoder, check_sampling
from d2e_sft.vllm.requests import PairProgress, PairRequest, RowGate, probe_parameters

IMAGINED, ALPHA, DECODER, PLAUSIBILITY = "d2e_imagined", "d2e_alpha", "d2e_decoder", "d2e_plausibility"
# Seconds before a pair is submitted again; each fruitless submission waits longer than the one before.
_FIRST_WAIT, _LONGEST_WAIT = 0.01, 1.0
# Fruitless submissions in a row after which the engine's steps are held while a pair is submitted.
_FREE_SUBMISSIONS = 2
# Seconds in which both requests of a pair reach an engine that is held; a later one costs a resubmission.
_ARRIVAL = 0.02

Reports = asyncio.Queue[tuple[RowView, RequestOutput | BaseException]]


class PairingEngine:
    """`AsyncLLM` that also takes pairs; all other attributes are the engine's own."""

    def __init__(self, engine: Any) -> None:
        check_engine(engine.vllm_config)
        self.engine = engine
        config = engine.vllm_config
        ranks = config.parallel_config.data_parallel_size
        self._ranks = itertools.cycle(range(ranks)) if ranks > 1 else itertools.repeat(None)
        self._gate = RowGate(config.scheduler_config.max_num_seqs * ranks)
        self._holding = asyncio.Lock()
        stops = with_end_of_text(engine, SamplingParams()).all_stop_token_ids
        tokenizer = engine.get_tokenizer()
        if getattr(tokenizer, "chat_template", None):
            check_template(tokenizer)  # vLLM renders it in this process
        self.sentinel = choose_sentinel(tokenizer, config.model_config.get_vocab_size(), stops)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    async def probe(self) -> None:
        """Raise UserError unless the engine runs the plug-in."""
        name, parameters = f"d2e-probe-{uuid.uuid4().hex}", probe_parameters(self.sentinel)
        tokens: list[int] = []
        async for output in self.engine.generate(tokens_input([0]), parameters, name):
            tokens += output.outputs[0].token_ids
        check_probe(tokens, self.sentinel)

    def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str, **options: Any
    ) -> AsyncIterator[RequestOutput]:
        """Like `AsyncLLM.generate`; a request with `d2e_imagined` in its `extra_args` is decoded as a pair.

        Raises VLLMValidationError (the server answers 400) if an option does not fit a pair, and GracefulHTTPError
        (429) if the engine takes no more requests.
        """
        if IMAGINED not in (sampling_params.extra_args or {}):
            return self._plain(prompt, sampling_params, request_id, options)
        request = pair_request(self.engine, prompt, sampling_params, self.sentinel)
        # Rejected here, before a stream begins.
        self.engine.check_admission(2 + self._gate.waiting, request_id)
        stream = PairStream(self.engine.get_tokenizer(), request_id, prompt, sampling_params)
        return self._decode(request, stream, request_id, options)

    async def _plain(
        self, prompt: Any, parameters: SamplingParams, request_id: str, options: Mapping[str, Any]
    ) -> AsyncIterator[RequestOutput]:
        async with self._gate.rows(parameters.n, wait=False):
            async for output in self.engine.generate(prompt, parameters, request_id, **options):
                yield output

    async def _decode(
        self, request: PairRequest, stream: PairStream, request_id: str, options: Mapping[str, Any]
    ) -> AsyncIterator[RequestOutput]:
        progress = PairProgress(request)
        # Both rows of a pair stay on one data-parallel rank, also in resubmissions.
        rank = options.get("data_parallel_rank")
        place = {**options, "data_parallel_rank": next(self._ranks) if rank is None else rank}
        async with self._gate.rows(2):
            while not progress.complete and not stream.stopped:
                if progress.fruitless:
                    await asyncio.sleep(min(_FIRST_WAIT * 2 ** (progress.fruitless - 1), _LONGEST_WAIT))
                async with self._submitted(progress, request_id, place) as reports:
                    async for view, output in reports:
                        gained = progress.report(view, output.outputs[0].token_ids, ended=output.finished)
                        for delta in stream.take(gained, progress, output, view):
                            yield delta
                        if progress.outcome != "running" or stream.stopped:
                            break
        yield stream.last(progress)

    @asynccontextmanager
    async def _submitted(
        self, progress: PairProgress, request_id: str, options: Mapping[str, Any]
    ) -> AsyncIterator[AsyncIterator[tuple[RowView, RequestOutput]]]:
        """Submit both requests; both are aborted when the block is left, however that happens."""
        try:
            rows = progress.submission(stream=True)
        except UserError as error:
            raise GenerationError(error.one_line) from None
        resubmitted = progress.submissions > 1
        if resubmitted and self.engine.vllm_config.scheduler_config.policy == "priority":
            options = {**options, "priority": options.get("priority", 0) - 1}
        reports: Reports = asyncio.Queue()
        pumps: list[asyncio.Task[None]] = []
        try:
            async with AsyncExitStack() as stack:
                hold = progress.fruitless > _FREE_SUBMISSIONS
                if hold:
                    await stack.enter_async_context(self._held())
                for view, prompt, parameters in rows:
                    name = f"{request_id}-{view}-{progress.submissions}"
                    # A pair that is being answered waits for room; a held engine never gets any.
                    before_waiting = stack.aclose if resubmitted else None
                    outputs = self._outputs(prompt, parameters, name, options, before_waiting)
                    pumps.append(asyncio.create_task(_pump(view, outputs, reports)))
                await asyncio.sleep(_ARRIVAL if hold else 0)
            yield _drain(reports, len(pumps))
        finally:
            for pump in pumps:
                pump.cancel()  # the engine aborts the request
            await asyncio.shield(asyncio.gather(*pumps, return_exceptions=True))

    async def _outputs(
        self,
        prompt: Any,
        parameters: SamplingParams,
        name: str,
        options: Mapping[str, Any],
        before_waiting: Callable[[], Awaitable[None]] | None,
    ) -> AsyncIterator[RequestOutput]:
        """Yield the engine's outputs for a request; if the engine has no room, wait if `before_waiting` is given."""
        while True:
            try:
                async for output in self.engine.generate(prompt, parameters, name, **options):
                    yield output
                return
            except GracefulHTTPError:
                if before_waiting is None:
                    raise
                await before_waiting()
                await asyncio.sleep(_LONGEST_WAIT)

    @asynccontextmanager
    async def _held(self) -> AsyncIterator[None]:
        """Hold the engine's steps during the block, so that its submissions are in one step's queue."""
        # An idle engine begins a step with the first request; on a busy machine the second may always be too late.
        async with self._holding:
            if await self.engine.is_paused():  # by a weight update
                yield
                return
            try:
                await self.engine.pause_generation(mode="keep", clear_cache=False)
                yield
            finally:
                await asyncio.shield(self.engine.resume_generation())


async def _pump(view: RowView, outputs: AsyncIterator[RequestOutput], reports: Reports) -> None:
    try:
        async for output in outputs:
            await reports.put((view, output))
    except Exception as error:
        await reports.put((view, error))


async def _drain(reports: Reports, rows: int) -> AsyncIterator[tuple[RowView, RequestOutput]]:
    ended = 0
    while ended < rows:
        view, output = await reports.get()
        if isinstance(output, BaseException):
            raise output
        ended += output.finished
        yield view, output


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
