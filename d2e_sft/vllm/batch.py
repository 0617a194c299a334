"""Many requests in one `vllm.LLM`: submitted while there is room, and again when a pair's rows were computed apart."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from d2e_sft.decoding.pairs import Output
from d2e_sft.util.errors import UserError
from d2e_sft.vllm.pairing import RowView
from d2e_sft.vllm.requests import PairProgress, PairRequest

if TYPE_CHECKING:
    from vllm import LLM

# Fruitless submissions in a row after which a pair gets the engine to itself.
_EXCLUSIVE_AFTER = 4


class RequestBatch:
    """Decodes requests on one engine."""

    def __init__(self, llm: LLM, requests: Sequence[PairRequest]) -> None:
        self.llm = llm
        self.scheduler = llm.llm_engine.vllm_config.scheduler_config
        self.room = self.scheduler.max_num_seqs  # rows that may be in the engine
        self.progress = [PairProgress(request) for request in requests]
        self.waiting, self.parted = deque(range(len(requests))), deque[int]()
        self.inside: dict[str, tuple[int, RowView]] = {}  # by name of the engine's request

    def run(self) -> Iterator[Output]:
        """Yield each request's complete answer as it comes; the others are aborted if the caller stops.

        Raises UserError if the engine never computes some pair in one step.
        """
        if self.room < 2 and any(progress.paired for progress in self.progress):
            raise UserError(f"max_num_seqs={self.room}: a pair is two sequences", "start the engine with at least 2")
        try:
            while not all(progress.complete for progress in self.progress):
                self._submit()
                for output in self.llm.llm_engine.step():
                    if output.finished and output.request_id in self.inside:
                        yield from self._finished(output)
        finally:
            if self.inside:  # after an error, an interrupt, or where the caller stopped
                self.llm.llm_engine.abort_request(list(self.inside))

    def _submit(self) -> None:
        """Fill the engine, parted pairs first; a pair enters only if both rows have room, or it would part at once."""
        exclusive = any(one.fruitless >= _EXCLUSIVE_AFTER and not one.complete for one in self.progress)
        while len(self.inside) + 2 <= self.room or not self.inside:
            if exclusive and self.inside:
                return
            queue = self.parted if self.parted or exclusive else self.waiting
            if not queue:
                return
            self._submit_one(queue.popleft())

    def _submit_one(self, index: int) -> None:
        progress, engine = self.progress[index], self.llm.llm_engine
        rows = progress.submission(stream=False)
        again = progress.submissions > 1
        priority = -1 if again and self.scheduler.policy == "priority" else 0
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

    def _finished(self, output: Any) -> Iterator[Output]:
        index, view = self.inside.pop(output.request_id)
        progress = self.progress[index]
        progress.report(view, list(output.outputs[0].token_ids), ended=True)
        if progress.complete:
            self.room = min(self.room + 1, self.scheduler.max_num_seqs)
            again = progress.submissions - 1
            yield Output(index, self.llm.get_tokenizer(), progress.answer, ended=True, resubmissions=again)
        elif progress.outcome == "decoupled":
            if self.inside:
                self.parted.append(index)
            else:
                # It ran while no other did, and is in the cache, from which another parted pair would remove it.
                self.parted.appendleft(index)
            if not progress.fruitless:
                # Parted after some tokens: the requests inside fill the cache, and more would only part.
                self.room = max(2, len(self.inside))
