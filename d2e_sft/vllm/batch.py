"""Many requests in one `vllm.LLM`: submitted while there is room, and again when a pair's rows were computed apart."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm import LLM

from d2e_sft.util.errors import UserError
from d2e_sft.vllm.pairing import RowView
from d2e_sft.vllm.requests import MAX_FRUITLESS_SUBMISSIONS, PairProgress, PairRequest

# Fruitless submissions in a row after which a pair gets the engine to itself.
_EXCLUSIVE_AFTER = 4


@dataclass
class RequestBatch:
    """Decodes requests on one engine.

    Attributes:
        on_answer: called with the index of a request and its complete answer.
        on_resubmission: called with a pair's index each time that it is submitted again.
    """

    llm: LLM
    requests: Sequence[PairRequest]
    on_answer: Callable[[int, list[int]], object] = lambda index, tokens: None
    on_resubmission: Callable[[int], object] = lambda index: None
    progress: list[PairProgress] = field(default_factory=list)
    inside: dict[str, tuple[int, RowView]] = field(default_factory=dict)  # by name of the engine's request
    answers: dict[int, list[int]] = field(default_factory=dict)
    parted: deque[int] = field(default_factory=deque)
    room: int = 0  # rows that may be in the engine

    def run(self) -> list[list[int]]:
        """Decode everything.

        Returns:
            the new tokens of each request, in order.

        Raises:
            UserError: the engine never computes some pair in one step.
        """
        waiting = deque(range(len(self.requests)))
        self.progress = [request.progress() for request in self.requests]
        self.room = self._rows
        if self.room < 2 and any(progress.paired for progress in self.progress):
            raise UserError(
                f"max_num_seqs={self.room}: a pair is two sequences", remedy="start the engine with at least 2"
            )
        try:
            while len(self.answers) < len(self.requests):
                self._submit(waiting)
                for output in self.llm.llm_engine.step():
                    if output.finished:
                        self._finished(output)
        finally:
            if self.inside:  # after an error or an interrupt
                self.llm.llm_engine.abort_request(list(self.inside))
        return [self.answers[index] for index in range(len(self.requests))]

    @property
    def _rows(self) -> int:
        rows: int = self.llm.llm_engine.vllm_config.scheduler_config.max_num_seqs
        return rows

    def _submit(self, waiting: deque[int]) -> None:
        """Fill the engine, parted pairs first; a pair enters only if both rows have room, or it would part at once."""
        exclusive = any(one.fruitless >= _EXCLUSIVE_AFTER and not one.complete for one in self.progress)
        while len(self.inside) + 2 <= self.room or not self.inside:
            if exclusive and self.inside:
                return
            if self.parted:
                self._submit_one(self.parted.popleft())
            elif waiting and not exclusive:
                self._submit_one(waiting.popleft())
            else:
                return

    def _submit_one(self, index: int) -> None:
        request, progress, engine = self.requests[index], self.progress[index], self.llm.llm_engine
        if progress.fruitless >= MAX_FRUITLESS_SUBMISSIONS:
            lengths = f"{len(request.pair.original)} tokens, {len(request.pair.imagined or ())} without context"
            raise UserError(
                f"prompt {index} ({lengths}): the engine computed the pair in different steps {progress.fruitless} "
                "times in a row",
                remedy="enable prefix caching, or raise max_num_batched_tokens above the tokens of both prompts",
            )
        rows = request.submission(progress, stream=False)
        progress.submit()
        again = progress.submissions > 1
        if again:
            self.on_resubmission(index)
        priority = -1 if again and engine.vllm_config.scheduler_config.policy == "priority" else 0
        idle = progress.paired and not self.inside
        if idle:  # or the engine could compute the first row before it gets the second
            self.llm.sleep(level=0, mode="keep")
        try:
            for view, prompt, parameters in rows:
                name = f"d2e-{uuid.uuid4().hex}"
                self.inside[name] = (index, view)
                engine.add_request(name, prompt, parameters, priority=priority)
        finally:
            if idle:
                self.llm.wake_up(tags=["scheduling"])

    def _finished(self, output: Any) -> None:
        known = self.inside.pop(output.request_id, None)
        if known is None:
            return
        index, view = known
        progress = self.progress[index]
        progress.report(view, list(output.outputs[0].token_ids), ended=True)
        if progress.complete:
            self._complete(index, progress.answer)
        elif progress.outcome == "decoupled":
            self.parted.append(index)
            if not progress.fruitless:
                # Parted after some tokens: the requests inside fill the cache, and more would only part.
                self.room = max(2, len(self.inside))

    def _complete(self, index: int, answer: list[int]) -> None:
        if index not in self.answers:
            self.answers[index] = answer
            self.room = min(self.room + 1, self._rows)
            self.on_answer(index, answer)
