"""A pair on its way: the two requests that vLLM takes, what they report, and when to submit them again.

vLLM is imported only where a request is made, so that a pair's progress is tested without an engine. See `pairing.py`
for why a token counts once both rows have it.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.vllm.pairing import Draw, PairedRow, RowView

if TYPE_CHECKING:
    from vllm import SamplingParams

# Submissions in a row without a token after which a pair is given up.
MAX_FRUITLESS_SUBMISSIONS = 16
Outcome = Literal["running", "stop", "length", "decoupled"]


class PairProgress:
    """The answer of one pair over all its submissions.

    Args:
        limit: tokens of the answer at most, the stop token not counted.
        stops: tokens that end an answer.
        sentinel: the token of a row that found itself alone.

    Attributes:
        answer: the tokens chosen so far, the stop token not among them.
        outcome: `running`; `stop` or `length` once the answer is complete; `decoupled` when both requests have ended
            and the answer has not: `submit` again.
        submissions: how often the pair was submitted.
        fruitless: submissions in a row that brought no token.
    """

    def __init__(self, limit: int, stops: Sequence[int], sentinel: int) -> None:
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
        """Both requests are on their way, with `answer` at the end of their prompts."""
        assert self.outcome == "decoupled"
        self._start_over()
        self.submissions += 1
        self.fruitless += 1
        self.outcome = "running"

    def report(self, view: RowView, tokens: Sequence[int], *, ended: bool) -> list[int]:
        """Take what one request has chosen since it last reported.

        Returns:
            the tokens that the answer has gained by it.
        """
        self._rows[view] += tokens
        self._ended[view] |= ended
        gained = self._agree()
        if self.outcome == "running" and all(self._ended.values()):
            self.outcome = "decoupled"
        if gained:
            self.fruitless = 0
        return gained

    def _agree(self) -> list[int]:
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
                if len(self.answer) == self.limit:
                    self.outcome = "length"
        return gained


@dataclass(frozen=True)
class PairRequest:
    """A pair of prompts and how to decode it.

    Attributes:
        original: token ids of the prompt with its context.
        imagined: token ids of the prompt without.
        decoding: the decoder, plausibility and the answer's length are read.
        stops: tokens that end the answer.
        sentinel: the token that ends a row that is alone.
        min_tokens: the answer's least length.
        draw: how to sample; None: greedy.
    """

    original: Sequence[int]
    imagined: Sequence[int]
    decoding: DecodingConfig
    stops: tuple[int, ...]
    sentinel: int
    min_tokens: int = 0
    draw: Draw | None = None

    def progress(self) -> PairProgress:
        """A fresh record of the pair's answer."""
        return PairProgress(self.decoding.max_new_tokens, self.stops, self.sentinel)

    def submission(self, progress: PairProgress, *, stream: bool) -> list[tuple[RowView, Any, SamplingParams]]:
        """Both requests: view, prompt and parameters, in the order in which they should be queued.

        The longer prompt comes first. Where a step has no room for all of it, its rest is read in the next step, and
        the shorter one behind it then too: the two end in the same step. The other way round they would not.
        """
        from vllm.inputs.engine import tokens_input

        name = uuid.uuid4().hex
        views: list[tuple[RowView, Sequence[int]]] = [("original", self.original), ("imagined", self.imagined)]
        views.sort(key=lambda entry: len(entry[1]), reverse=True)
        return [
            (view, tokens_input([*prompt, *progress.answer]), self._parameters(name, view, progress, stream))
            for view, prompt in views
        ]

    def _parameters(self, name: str, view: RowView, progress: PairProgress, stream: bool) -> SamplingParams:
        row = PairedRow(
            pair=name,
            view=view,
            alpha=float(self.decoding.alpha),
            sentinel=self.sentinel,
            done=len(progress.answer),
            min_tokens=self.min_tokens,
            stops=self.stops,
            plausibility=float(self.decoding.plausibility),
            draw=self.draw,
            decoder=self.decoding.decoder,
        )
        parameters = plain_parameters(progress.remaining, (*self.stops, self.sentinel), stream=stream)
        parameters.extra_args = row.as_extra_args()
        return parameters


def plain_parameters(max_tokens: int, stops: Sequence[int], *, stream: bool = False) -> SamplingParams:
    """Greedy decoding that ends at `stops` and at nothing else; text is left to the caller."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=0.0,
        max_tokens=max_tokens,
        stop_token_ids=list(stops),
        ignore_eos=True,  # the model's own end of text is among the stops where it is meant to be
        detokenize=False,
        output_kind=RequestOutputKind.DELTA if stream else RequestOutputKind.FINAL_ONLY,
    )
