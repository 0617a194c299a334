"""An engine client that decodes pairs: vLLM's `AsyncLLM` with one more kind of request.

A request whose `extra_args` hold `d2e_imagined` (the token ids of the prompt without context) and `d2e_alpha` or
`d2e_decoder` becomes a pair; the caller sees one stream of outputs, as of any request. Everything else passes through.
vLLM's own serving code therefore runs on it unchanged.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from vllm import SamplingParams
from vllm.exceptions import GenerationError, GracefulHTTPError, VLLMValidationError
from vllm.inputs.engine import tokens_input
from vllm.outputs import RequestOutput

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.decoding.pairs import PromptPair
from d2e_sft.util.errors import UserError
from d2e_sft.vllm.engine import check_engine, check_probe, choose_sentinel, probe_row
from d2e_sft.vllm.gate import RowGate
from d2e_sft.vllm.pairing import Draw, RowView, check_decoder, refuse_options
from d2e_sft.vllm.requests import MAX_FRUITLESS_SUBMISSIONS, PairProgress, PairRequest, plain_parameters
from d2e_sft.vllm.stream import PairStream

IMAGINED, ALPHA, DECODER, PLAUSIBILITY = "d2e_imagined", "d2e_alpha", "d2e_decoder", "d2e_plausibility"
# Seconds before a pair is submitted again; each submission without a token waits longer than the one before.
_FIRST_WAIT, _LONGEST_WAIT = 0.01, 1.0
# Submissions in a row without a token after which the engine's steps are held while a pair is submitted.
_FREE_SUBMISSIONS = 2


class PairingEngine:
    """`AsyncLLM` that also takes pairs; every other attribute is the engine's own.

    Args:
        engine: a `vllm.v1.engine.async_llm.AsyncLLM`.
        sentinel: the token that ends a row that is alone; None: one that no answer holds.

    Raises:
        UserError: the engine cannot decode pairs.
    """

    def __init__(self, engine: Any, *, sentinel: int | None = None) -> None:
        check_engine(engine.vllm_config)
        self.engine = engine
        config = engine.vllm_config
        self._ranks = itertools.cycle(range(config.parallel_config.data_parallel_size))
        self._many_ranks = config.parallel_config.data_parallel_size > 1
        self._gate = RowGate(config.scheduler_config.max_num_seqs * config.parallel_config.data_parallel_size)
        self._holding = asyncio.Lock()
        ends = SamplingParams()
        self._end_of_text(ends)
        vocab = config.model_config.get_vocab_size()
        chosen = choose_sentinel(engine.get_tokenizer(), vocab, ends.all_stop_token_ids)
        self.sentinel = chosen if sentinel is None else sentinel

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    async def probe(self) -> None:
        """Make sure that the engine runs the plug-in.

        Raises:
            UserError: it does not.
        """
        parameters = plain_parameters(1, [self.sentinel])
        parameters.extra_args = probe_row(self.sentinel).as_extra_args()
        tokens: list[int] = []
        async for output in self.engine.generate(tokens_input([0]), parameters, f"d2e-probe-{uuid.uuid4().hex}"):
            tokens += output.outputs[0].token_ids
        check_probe(tokens, self.sentinel)

    def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str, **options: Any
    ) -> AsyncIterator[RequestOutput]:
        """As `AsyncLLM.generate`; a request with `d2e_imagined` in its `extra_args` is decoded as a pair.

        Raises:
            VLLMValidationError: the pair has options that do not fit it; the server answers 400.
            GracefulHTTPError: the engine takes no more requests; the server answers 429.
        """
        extra = sampling_params.extra_args or {}
        if IMAGINED not in extra:
            return self._plain(prompt, sampling_params, request_id, options)
        request = self._pair_request(prompt, sampling_params, extra)
        # Refused here, before a stream has begun, and not in its middle.
        self.engine.check_admission(2 + self._gate.waiting, request_id)
        return self._decode(request, prompt, sampling_params, request_id, options)

    async def _plain(
        self, prompt: Any, parameters: SamplingParams, request_id: str, options: Mapping[str, Any]
    ) -> AsyncIterator[RequestOutput]:
        with self._gate.count(parameters.n):
            async for output in self.engine.generate(prompt, parameters, request_id, **options):
                yield output

    def _pair_request(self, prompt: Any, given: SamplingParams, extra: Mapping[str, Any]) -> PairRequest:
        if not isinstance(prompt, Mapping) or prompt.get("type") != "token":
            raise VLLMValidationError("context: needs a prompt of text alone, without images, audio or embeddings")
        parameters = given.clone()
        self._end_of_text(parameters)
        stops = set(parameters.stop_token_ids or ())
        if not parameters.ignore_eos:
            stops |= parameters.all_stop_token_ids
        limit = self.engine.vllm_config.model_config.max_model_len
        original, imagined = list(prompt["prompt_token_ids"]), _token_ids(extra[IMAGINED])
        room = limit - max(len(original), len(imagined))
        if room < 1:
            raise VLLMValidationError(
                f"prompts of {len(original)} and {len(imagined)} tokens (with and without context) leave no room for "
                f"an answer within the model's {limit} positions",
                parameter="messages",
            )
        try:
            refuse_options(parameters)
            check_decoder(extra.get(DECODER, "d2e"))
            decoding = DecodingConfig(
                alpha=extra.get(ALPHA, math.nan),  # which is refused, as is whatever is no number
                decoder=extra.get(DECODER, "d2e"),
                plausibility=extra.get(PLAUSIBILITY, 0.0),
                max_new_tokens=min(parameters.max_tokens or room, room),
            )
            return PairRequest(
                PromptPair(original, imagined, alpha=decoding.alpha),
                decoding=decoding,
                stops=tuple(sorted(stops)),
                sentinel=self.sentinel,
                min_tokens=parameters.min_tokens,
                draw=_draw(parameters),
            )
        except (ValueError, UserError) as error:
            raise VLLMValidationError(str(error)) from None

    def _end_of_text(self, parameters: SamplingParams) -> None:
        """Add the model's own stop tokens, as the engine does when it takes a request."""
        renderer = self.engine.renderer
        parameters.update_from_generation_config(
            self.engine.input_processor.generation_config_fields, renderer.get_eos_token_id()
        )

    async def _decode(
        self,
        request: PairRequest,
        prompt: Any,
        given: SamplingParams,
        request_id: str,
        options: Mapping[str, Any],
    ) -> AsyncIterator[RequestOutput]:
        progress = request.progress()
        stream = PairStream(self.engine.get_tokenizer(), request_id, prompt, given)
        # Both rows of a pair live on one data-parallel rank, now and when they are submitted again.
        rank = options.get("data_parallel_rank")
        place = dict(options) | {
            "data_parallel_rank": next(self._ranks) if rank is None and self._many_ranks else rank
        }
        async with self._gate.rows(2):
            while not progress.complete and not stream.stopped:
                await self._before_submission(progress)
                async with self._submitted(request, progress, request_id, place) as reports:
                    async for view, output in reports:
                        gained = progress.report(view, output.outputs[0].token_ids, ended=output.finished)
                        for delta in stream.take(gained, progress, output, view):
                            yield delta
                        if progress.outcome != "running" or stream.stopped:
                            break
        yield stream.last(progress)

    async def _before_submission(self, progress: PairProgress) -> None:
        if progress.fruitless >= MAX_FRUITLESS_SUBMISSIONS:
            raise GenerationError(
                f"debiased decoding: the two prompts were computed in different steps {progress.fruitless} times in a "
                "row; raise --max-num-batched-tokens, give the cache more memory, or enable prefix caching"
            )
        if progress.fruitless:
            await asyncio.sleep(min(_FIRST_WAIT * 2 ** (progress.fruitless - 1), _LONGEST_WAIT))

    @asynccontextmanager
    async def _submitted(
        self, request: PairRequest, progress: PairProgress, request_id: str, options: Mapping[str, Any]
    ) -> AsyncIterator[AsyncIterator[tuple[RowView, RequestOutput]]]:
        """Both requests in the engine; leaving the block, however, ends both."""
        rows = request.submission(progress, stream=True)
        again = progress.submissions > 0
        progress.submit()
        by_priority = self.engine.vllm_config.scheduler_config.policy == "priority"
        urgent = {"priority": options.get("priority", 0) - 1} if again and by_priority else {}
        collectors: list[tuple[RowView, Any]] = []
        reports: asyncio.Queue[tuple[RowView, RequestOutput | BaseException]] = asyncio.Queue()
        pumps: list[asyncio.Task[None]] = []
        try:
            async with AsyncExitStack() as held:
                if progress.fruitless > _FREE_SUBMISSIONS:
                    await held.enter_async_context(self._held())
                waiting = held.aclose if again else None
                for view, prompt, parameters in rows:
                    name = f"{request_id}-{view}-{progress.submissions}"
                    collector = await self._add(name, prompt, parameters, {**options, **urgent}, waiting)
                    collectors.append((view, collector))
            pumps += [asyncio.create_task(_pump(view, collector, reports)) for view, collector in collectors]
            yield _drain(reports, len(pumps))
        finally:
            for pump in pumps:
                pump.cancel()
            for _, collector in collectors:
                # One that has ended is unknown to the engine, which then does nothing.
                await asyncio.shield(self.engine.abort(collector.request_id, internal=True))
                collector.close()

    @asynccontextmanager
    async def _held(self) -> AsyncIterator[None]:
        """No step of the engine while the block runs, so that what it submits is in one step's queue.

        An engine that is idle begins a step with the first request that comes. On a machine with other work the second
        one may come too late each time.
        """
        async with self._holding:
            if await self.engine.is_paused():  # by whoever changes its weights
                yield
                return
            try:
                await self.engine.pause_generation(mode="keep", clear_cache=False)
                yield
            finally:
                await asyncio.shield(self.engine.resume_generation())

    async def _add(
        self,
        name: str,
        prompt: Any,
        parameters: SamplingParams,
        options: Mapping[str, Any],
        before_waiting: Callable[[], Awaitable[None]] | None,
    ) -> Any:
        """Give the engine a request; a full one is waited for, unless `before_waiting` is None."""
        known = {"lora_request", "trace_headers", "priority", "data_parallel_rank", "session_id"}
        chosen = {key: value for key, value in options.items() if key in known}
        while True:
            try:
                return await self.engine.add_request(name, prompt, parameters, **chosen)
            except GracefulHTTPError:
                if before_waiting is None:  # a pair that is being answered is not turned away half-way
                    raise
                await before_waiting()  # an engine that is held never has room
                await asyncio.sleep(_LONGEST_WAIT)


async def _pump(view: RowView, collector: Any, reports: asyncio.Queue[Any]) -> None:
    try:
        while True:
            output = collector.get_nowait() or await collector.get()
            await reports.put((view, output))
            if output.finished:
                return
    except Exception as error:
        await reports.put((view, error))


async def _drain(reports: asyncio.Queue[Any], rows: int) -> AsyncIterator[tuple[RowView, RequestOutput]]:
    ended = 0
    while ended < rows:
        view, output = await reports.get()
        if isinstance(output, BaseException):
            raise output
        ended += output.finished
        yield view, output


def _token_ids(value: Any) -> list[int]:
    if not isinstance(value, list) or not value or not all(isinstance(token, int) and token >= 0 for token in value):
        raise VLLMValidationError(f"{IMAGINED}: expected the token ids of a prompt", parameter=IMAGINED)
    return value


def _draw(parameters: SamplingParams) -> Draw | None:
    if parameters.temperature < 1e-5:  # what vLLM takes for greedy
        return None
    seed = uuid.uuid4().int % (1 << 63) if parameters.seed is None else parameters.seed
    return Draw(
        temperature=parameters.temperature,
        seed=seed,
        top_k=max(0, parameters.top_k),
        top_p=parameters.top_p,
        min_p=parameters.min_p,
    )
