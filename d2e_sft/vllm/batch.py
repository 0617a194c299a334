"""Many requests in one `vllm.LLM`: submitted while there is room, and again when a pair's rows were computed apart."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm import LLM
from vllm.inputs.engine import tokens_input

from d2e_sft.decoding.pairs import Tokens
from d2e_sft.util.errors import UserError
from d2e_sft.vllm.pairing import RowView
from d2e_sft.vllm.requests import MAX_FRUITLESS_SUBMISSIONS, PairProgress, PairRequest, plain_parameters

# Fruitless submissions in a row after which a pair gets the engine to itself.
_EXCLUSIVE_AFTER = 4


@dataclass(frozen=True)
class PlainRequest:
    """A prompt without a partner, decoded greedily; the stop token that ends the answer is not part of it."""

    prompt: Tokens
    max_tokens: int
    stops: tuple[int, ...]


@dataclass
class RequestBatch:
    """Decodes requests on one engine.

    Attributes:
        on_answer: called with the index of a request and its complete answer.
        on_resubmission: called with a pair's index each time that it is submitted again.
    """

    llm: LLM
    requests: Sequence[PairRequest | PlainRequest]
    on_answer: Callable[[int, list[int]], object] = lambda index, tokens: None
    on_resubmission: Callable[[int], object] = lambda index: None
    progress: dict[int, PairProgress] = field(default_factory=dict)
    inside: dict[str, tuple[int, RowView | None]] = field(default_factory=dict)  # by name of the engine's request
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
        self.progress = {i: one.progress() for i, one in enumerate(self.requests) if isinstance(one, PairRequest)}
        self.room = self._rows
        if self.room < 2 and self.progress:
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
        unfinished = (progress for progress in self.progress.values() if not progress.complete)
        exclusive = any(progress.fruitless >= _EXCLUSIVE_AFTER for progress in unfinished)
        while len(self.inside) + 2 <= self.room or not self.inside:
            if exclusive and self.inside:
                return
            if self.parted:
                index = self.parted.popleft()
            elif waiting and not exclusive:
                index = waiting.popleft()
            else:
                return
            request = self.requests[index]
            if isinstance(request, PairRequest):
                self._submit_pair(index, request)
            else:
                self._add(index, None, request.prompt, plain_parameters(request.max_tokens, request.stops))

    def _submit_pair(self, index: int, request: PairRequest) -> None:
        progress = self.progress[index]
        if progress.fruitless >= MAX_FRUITLESS_SUBMISSIONS:
            lengths = f"{len(request.pair.original)} tokens, {len(request.pair.imagined or ())} without context"
            raise UserError(
                f"prompt {index} ({lengths}): the engine computed the pair in different steps {progress.fruitless} "
                "times in a row",
                remedy="enable prefix caching, or raise max_num_batched_tokens above the tokens of both prompts",
            )
        rows = request.submission(progress, stream=False)
        progress.submit()
        if progress.submissions > 1:
            self.on_resubmission(index)
        for view, prompt, parameters in rows:
            self._add(index, view, prompt["prompt_token_ids"], parameters)

    def _add(self, index: int, view: RowView | None, tokens: Tokens, parameters: Any) -> None:
        name = f"d2e-{uuid.uuid4().hex}"
        self.inside[name] = (index, view)
        engine = self.llm.llm_engine
        again = index in self.progress and self.progress[index].submissions > 1
        first = again and engine.vllm_config.scheduler_config.policy == "priority"
        engine.add_request(name, tokens_input(list(tokens)), parameters, priority=-1 if first else 0)

    def _finished(self, output: Any) -> None:
        known = self.inside.pop(output.request_id, None)
        if known is None:
            return
        index, view = known
        tokens = list(output.outputs[0].token_ids)
        request = self.requests[index]
        if view is None:
            assert isinstance(request, PlainRequest)
            self._complete(index, [token for token in tokens if token not in request.stops])
            return
        progress = self.progress[index]
        progress.report(view, tokens, ended=True)
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
