"""What each answer trusts, kept from one step to the next for the decoder `grd`.

A step may have to be done again: vLLM throws away the token of a row whose prompt it is still reading, and a pair that
was parted is submitted anew behind its accepted tokens. So a decision is kept with the index of its token, and whoever
comes back to this index decides anew.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager

import torch

from d2e_sft.decoding.decoders import OPEN, ChosenDecoder

Place = tuple[Hashable, int]  # an answer's name, and the index of the token that a step chooses


class Trusts:
    """The trust of answers by their names; beyond `most` answers the oldest is forgotten."""

    def __init__(self, most: int = 2**16) -> None:
        self.most = most
        self._of: dict[Hashable, tuple[int, int]] = {}  # name → index of the token at which it was decided, and trust

    def knows(self, place: Place) -> bool:
        """Whether the steps before are remembered, or there are none."""
        answer, index = place
        return index == 0 or answer in self._of

    @contextmanager
    def remembered(
        self, decoder: ChosenDecoder, places: Sequence[Place], device: torch.device
    ) -> Iterator[ChosenDecoder]:
        """The decoder for one step of known answers, whose decisions are kept; others are given back as they are."""
        if not decoder.remembers:
            yield decoder
            return
        before = [self._before(*place) for place in places]
        trust = torch.tensor([trust for _, trust in before], dtype=torch.long, device=device)[:, None]
        yield decoder.trusting(trust)
        for (answer, index), (at, was), now in zip(places, before, trust[:, 0].tolist(), strict=True):
            self._of.pop(answer, None)  # the newest is the last
            self._of[answer] = (index, now) if was == OPEN else (at, was)
        while len(self._of) > self.most:
            del self._of[next(iter(self._of))]

    def _before(self, answer: Hashable, index: int) -> tuple[int, int]:
        at, trust = self._of.get(answer, (index, OPEN))
        return (at, trust) if at < index else (index, OPEN)
