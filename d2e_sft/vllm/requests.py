"""Token ids and options → what vLLM takes: an engine input and sampling parameters for each request of a pair."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vllm import SamplingParams
from vllm.inputs.engine import tokens_input
from vllm.sampling_params import RequestOutputKind

from d2e_sft.vllm.draws import Draw
from d2e_sft.vllm.pairing import PairedRow, RowView
from d2e_sft.vllm.progress import PairProgress


@dataclass(frozen=True)
class PairRequest:
    """A pair of prompts and how to decode it.

    Attributes:
        original: token ids of the prompt with its context.
        imagined: token ids of the prompt without.
        alpha: the debias ratio.
        max_new_tokens: tokens at most, the stop token counted.
        stops: tokens that end the answer.
        sentinel: the token that ends a row that is alone.
        min_tokens: the answer's least length.
        plausibility: see `PairedRow`.
        draw: how to sample; None: greedy.
    """

    original: Sequence[int]
    imagined: Sequence[int]
    alpha: float
    max_new_tokens: int
    stops: tuple[int, ...]
    sentinel: int
    min_tokens: int = 0
    plausibility: float = 0.0
    draw: Draw | None = None

    def progress(self) -> PairProgress:
        """A fresh record of the pair's answer."""
        return PairProgress(self.max_new_tokens, self.stops, self.sentinel)

    def submission(self, progress: PairProgress, *, stream: bool) -> list[tuple[RowView, Any, SamplingParams]]:
        """Both requests: view, prompt and parameters, in the order in which they should be queued.

        The longer prompt comes first. Where a step has no room for all of it, its rest is read in the next step, and
        the shorter one behind it then too: the two end in the same step. The other way round they would not.
        """
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
            alpha=float(self.alpha),
            sentinel=self.sentinel,
            done=len(progress.answer),
            min_tokens=self.min_tokens,
            stops=self.stops,
            plausibility=self.plausibility,
            draw=self.draw,
        )
        parameters = plain_parameters(progress.remaining, (*self.stops, self.sentinel), stream=stream)
        parameters.extra_args = row.as_extra_args()
        return parameters


def plain_parameters(max_tokens: int, stops: Sequence[int], *, stream: bool = False) -> SamplingParams:
    """Greedy decoding that ends at `stops` and at nothing else; text is left to the caller."""
    return SamplingParams(
        temperature=0.0,
        max_tokens=max_tokens,
        stop_token_ids=list(stops),
        ignore_eos=True,  # the model's own end of text is among the stops where it is meant to be
        detokenize=False,
        output_kind=RequestOutputKind.DELTA if stream else RequestOutputKind.FINAL_ONLY,
    )
