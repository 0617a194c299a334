"""An engine client that decodes pairs: vLLM's `AsyncLLM` with one more kind of request.

A request becomes a pair if its `extra_args` hold `d2e_imagined` (the token ids of the prompt without context) and
`d2e_alpha` or `d2e_decoder`. The caller sees one stream of outputs, as for any request. Everything else passes
through, so vLLM's own serving code runs on it unchanged.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from vllm import SamplingParams
from vllm.exceptions import GenerationError, GracefulHTTPError
from vllm.inputs.engine import tokens_input
from vllm.outputs import RequestOutput

from d2e_sft.data.chat_template import check_template
from d2e_sft.util.errors import UserError
from d2e_sft.vllm.engine import check_engine, check_probe, choose_sentinel
from d2e_sft.vllm.pairing import RowView
from d2e_sft.vllm.requests import PairProgress, PairRequest, RowGate, probe_parameters
from d2e_sft.vllm.server.pair_request import IMAGINED, PairStream, pair_request, with_end_of_text

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
