"""A pair in vLLM: its one or two requests, what they report, and when to submit them again.

vLLM is imported only when a request is made, so that a pair's progress can be tested without an engine. A token
is accepted when both rows have reported it; `pairing.py` explains why.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.decoding.pairs import TokenPair
from d2e_sft.util.errors import UserError
from d2e_sft.vllm.pairing import Draw, PairedRow, RowView

if TYPE_CHECKING:
    from vllm import SamplingParams

# Fruitless submissions in a row after which a pair is given up.
_MAX_FRUITLESS_SUBMISSIONS = 16
# Seconds after which a pair enters even if plain requests never leave two places free. It may then part, which only
# costs time.
_PATIENCE = 5.0
Outcome = Literal["running", "stop", "length", "decoupled"]


@dataclass(frozen=True)
class PairRequest:
    """A pair of prompts and how to decode it; without an imagined prompt it is one plain request.

    `pair` is as from `d2e_sft.decoding.pairs.resolved`. Tokens in `stops` end the answer. A row without a partner
    takes the `sentinel`. `draw` says how to sample; None: greedily.
    """

    pair: TokenPair
    decoding: DecodingConfig
    stops: tuple[int, ...]
    sentinel: int
    min_tokens: int = 0
    draw: Draw | None = None


class PairProgress:
    """The answer of one pair over all its submissions.

    Attributes:
        paired: False for a plain request, which reports for both rows.
        answer: The tokens chosen so far, without the stop token.
        outcome: `running`; `stop` or `length` once the answer is complete; `decoupled` when both requests have ended
            before the answer: call `submit` again.
        fruitless: Submissions in a row without a new token.
    """

    def __init__(self, request: PairRequest) -> None:
        self.request = request
        self.name = uuid.uuid4().hex
        self.paired = request.pair.imagined is not None
        self.limit = request.decoding.max_new_tokens
        self.answer: list[int] = []
        self.stopped_by: int | None = None
        self.outcome: Outcome = "decoupled"
        self.submissions = 0
        self.fruitless = 0
        self._start_over()

    def _start_over(self) -> None:
        self._rows: dict[RowView, list[int]] = {"original": [], "imagined": []}
        self._ended: dict[RowView, bool] = {"original": False, "imagined": False}
        self._agreed = 0
        self._apart = False

    @property
    def remaining(self) -> int:
        """Tokens that the next submission may choose."""
        return self.limit - len(self.answer)

    @property
    def complete(self) -> bool:
        return self.outcome in ("stop", "length")

    def submit(self) -> None:
        """Start a submission of both requests, with `answer` at the end of their prompts."""
        assert self.outcome == "decoupled"
        self._start_over()
        self.submissions += 1
        self.fruitless += 1
        self.outcome = "running"

    def submission(self, *, stream: bool) -> list[tuple[RowView, Any, SamplingParams]]:
        """Begin a submission: view, prompt and parameters of its requests, in the order in which to queue them.

        The longer prompt comes first. If a step has no room for all of it, the next step reads its rest and the
        shorter prompt, so both end in the same step. In the other order they would not.
        """
        from vllm.inputs.engine import tokens_input

        request, pair = self.request, self.request.pair
        if self.fruitless >= _MAX_FRUITLESS_SUBMISSIONS:
            raise UserError(
                f"{pair.name} ({len(pair.original)} tokens, {len(pair.imagined or ())} without context): the engine "
                f"chose no token for the pair {self.fruitless} times in a row: its logits contain NaN or infinity, "
                "or it computed the pair in different steps",
                remedy="compute in bfloat16 or float32 instead of float16; enable prefix caching, give the cache more "
                "memory, or raise max_num_batched_tokens",
            )
        self.submit()
        if pair.imagined is None:
            parameters = plain_parameters(self.remaining, request.stops, stream=stream)
            return [("original", tokens_input([*pair.original]), parameters)]
        row = PairedRow(
            pair=uuid.uuid4().hex,
            view="original",
            alpha=float(pair.alpha or 0.0),
            sentinel=request.sentinel,
            done=len(self.answer),
            min_tokens=request.min_tokens,
            stops=request.stops,
            plausibility=float(request.decoding.plausibility),
            draw=request.draw,
            decoder=request.decoding.decoder,
        )
        rows = [(row, pair.original), (replace(row, view="imagined"), pair.imagined)]
        stops = (*request.stops, request.sentinel)
        return [
            (
                row.view,
                tokens_input([*prompt, *self.answer]),
                plain_parameters(self.remaining, stops, stream=stream, extra_args=row.as_extra_args()),
            )
            for row, prompt in sorted(rows, key=lambda item: len(item[1]), reverse=True)
        ]

    def report(self, view: RowView, tokens: Sequence[int], *, ended: bool) -> list[int]:
        """Take the tokens that a request has chosen since its last report, and return those that the answer gains."""
        for reported in (view,) if self.paired else self._rows:
            self._rows[reported] += tokens
            self._ended[reported] |= ended
        original, imagined = self._rows["original"], self._rows["imagined"]
        gained: list[int] = []
        while self.outcome == "running" and not self._apart and self._agreed < min(len(original), len(imagined)):
            ours, theirs = original[self._agreed], imagined[self._agreed]
            # A plain request may choose any token.
            if ours != theirs or (self.paired and ours == self.request.sentinel):
                self._apart = True
            elif ours in self.request.stops:
                self.outcome, self.stopped_by = "stop", ours
            else:
                self.answer.append(ours)
                gained.append(ours)
                self._agreed += 1
                self.fruitless = 0
                if len(self.answer) == self.limit:
                    self.outcome = "length"
        if self.outcome == "running" and all(self._ended.values()):
            self.outcome = "decoupled"
        return gained


def probe_parameters(sentinel: int) -> SamplingParams:
    """Those of a row without a partner: only an engine that runs the plug-in answers it with the sentinel."""
    row = PairedRow(pair="probe", view="original", alpha=0.0, sentinel=sentinel)
    return plain_parameters(1, [sentinel], extra_args=row.as_extra_args())


def plain_parameters(
    max_tokens: int, stops: Sequence[int], *, stream: bool = False, extra_args: dict[str, Any] | None = None
) -> SamplingParams:
    """Greedy decoding that ends only at `stops`, without detokenisation."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=0.0,
        max_tokens=max_tokens,
        stop_token_ids=list(stops),
        ignore_eos=True,  # the caller adds the end of text to `stops`, if wanted
        detokenize=False,
        extra_args=extra_args,
        output_kind=RequestOutputKind.DELTA if stream else RequestOutputKind.FINAL_ONLY,
    )


class RowGate:
    """Places for rows in the engine: `free` ones (negative if plain requests exceed them), and rows `waiting`.

    vLLM computes at most `max_num_seqs` rows per step. If a pair enters when one place is free, its second row waits
    in the queue and the first has no partner. So a pair waits for two free places; plain requests enter at once.
    """

    def __init__(self, places: int) -> None:
        self.free = places
        self.waiting = 0
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def rows(self, rows: int, *, wait: bool = True) -> AsyncIterator[None]:
        """Take places for the duration of the block; waits until all of them are free, unless `wait` is False."""
        async with self._changed:
            self.waiting += rows
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_PATIENCE):
                        await self._changed.wait_for(lambda: not wait or self.free >= rows)
            finally:
                self.waiting -= rows
            self.free -= rows

        async def leave() -> None:
            async with self._changed:
                self.free += rows
                self._changed.notify_all()

        try:
            yield
        finally:
            await asyncio.shield(leave())
