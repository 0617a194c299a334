"""A pair's answer from what its two requests report, and whether the pair has to be submitted again.

Plain Python, so that it is tested without an engine. See `pairing.py` for why a token counts once both rows have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from d2e_sft.vllm.pairing import RowView

Outcome = Literal["running", "stop", "length", "decoupled"]


class PairProgress:
    """The answer of one pair over all its submissions.

    Args:
        limit: tokens of the answer at most, the stop token counted.
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

    @property
    def abandoned(self) -> bool:
        """Whether this submission can bring no more tokens, though a request of it may still run."""
        return self._apart

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
