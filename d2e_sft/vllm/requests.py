"""A pair in vLLM: its one or two requests, what they report, and when to submit them again.

vLLM is imported only when a request is made, so that a pair's progress can be tested without an engine. A token
is accepted when both rows have reported it; `pairing.py` explains why.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.decoding.pairs import TokenPair
from d2e_sft.util.errors import UserError
from d2e_sft.vllm.draw import Draw
from d2e_sft.vllm.pairing import PairedRow, RowView

if TYPE_CHECKING:
    from vllm import SamplingParams

# Fruitless submissions in a row after which a pair is given up.
_MAX_FRUITLESS_SUBMISSIONS = 16
Outcome = Literal["running", "stop", "length", "decoupled"]


class PairProgress:
    """The answer of one pair over all its submissions.

    Args:
        limit: longest answer in tokens, without the stop token.
        stops: tokens that end an answer.
        sentinel: the token of a row without a partner.
        paired: False for a plain request, which reports for both rows.

    Attributes:
        answer: the tokens chosen so far, without the stop token.
        outcome: `running`; `stop` or `length` once the answer is complete; `decoupled` when both requests have ended
            before the answer: call `submit` again.
        submissions: number of submissions of the pair.
        fruitless: submissions in a row without a new token.
    """

    def __init__(self, limit: int, stops: Sequence[int], sentinel: int, *, paired: bool = True) -> None:
        self.paired = paired
        self.limit = limit
        self.stops = frozenset(stops)
        self.sentinel = sentinel
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
        """Whether the answer is final."""
        return self.outcome in ("stop", "length")

    def submit(self) -> None:
        """Start a submission of both requests, with `answer` at the end of their prompts."""
        assert self.outcome == "decoupled"
        self._start_over()
        self.submissions += 1
        self.fruitless += 1
        self.outcome = "running"

    def report(self, view: RowView, tokens: Sequence[int], *, ended: bool) -> list[int]:
        """Take the tokens that one request has chosen since its last report.

        Returns:
            the tokens that the answer has gained.
        """
        for reported in (view,) if self.paired else self._rows:
            self._rows[reported] += tokens
            self._ended[reported] |= ended
        original, imagined = self._rows["original"], self._rows["imagined"]
        gained: list[int] = []
        while self.outcome == "running" and not self._apart and self._agreed < min(len(original), len(imagined)):
            ours, theirs = original[self._agreed], imagined[self._agreed]
            if ours != theirs or ours == self.sentinel:
                self._apart = True
            elif ours in self.stops:
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


@dataclass(frozen=True)
class PairRequest:
    """A pair of prompts and how to decode it; without an imagined prompt it is one plain request.

    Attributes:
        pair: see `d2e_sft.decoding.pairs.resolved`.
        stops: tokens that end the answer.
        sentinel: the token of a row without a partner.
        draw: how to sample; None: greedy.
    """

    pair: TokenPair
    decoding: DecodingConfig
    stops: tuple[int, ...]
    sentinel: int
    min_tokens: int = 0
    draw: Draw | None = None

    def progress(self) -> PairProgress:
        """A fresh record of the pair's answer."""
        paired = self.pair.imagined is not None
        sentinel = self.sentinel if paired else -1  # a plain request may choose any token
        return PairProgress(self.decoding.max_new_tokens, self.stops, sentinel, paired=paired)

    def submission(self, progress: PairProgress, *, stream: bool) -> list[tuple[RowView, Any, SamplingParams]]:
        """Begin a submission: view, prompt and parameters of its requests, in the order in which to queue them.

        The longer prompt comes first. If a step has no room for all of it, the next step reads its rest and the
        shorter prompt, so both end in the same step. In the other order they would not.

        Raises:
            UserError: the engine computed the pair in different steps too often.
        """
        from vllm.inputs.engine import tokens_input

        pair = self.pair
        if progress.fruitless >= _MAX_FRUITLESS_SUBMISSIONS:
            lengths = f"{len(pair.original)} tokens, {len(pair.imagined or ())} without context"
            raise UserError(
                f"{pair.name} ({lengths}): the engine computed the pair in different steps {progress.fruitless} times "
                "in a row",
                remedy="enable prefix caching, give the cache more memory, or raise max_num_batched_tokens above the "
                "tokens of both prompts",
            )
        progress.submit()
        if pair.imagined is None:
            parameters = plain_parameters(progress.remaining, self.stops, stream=stream)
            return [("original", tokens_input([*pair.original]), parameters)]
        row = PairedRow(
            pair=uuid.uuid4().hex,
            view="original",
            alpha=float(pair.alpha or 0.0),
            sentinel=self.sentinel,
            done=len(progress.answer),
            min_tokens=self.min_tokens,
            stops=self.stops,
            plausibility=float(self.decoding.plausibility),
            draw=self.draw,
            decoder=self.decoding.decoder,
        )
        rows = [(row, pair.original), (replace(row, view="imagined"), pair.imagined)]
        stops = (*self.stops, self.sentinel)
        return [
            (
                row.view,
                tokens_input([*prompt, *progress.answer]),
                plain_parameters(progress.remaining, stops, stream=stream, extra_args=row.as_extra_args()),
            )
            for row, prompt in sorted(rows, key=lambda one: len(one[1]), reverse=True)
        ]


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
