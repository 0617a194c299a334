"""Many pairs on one `vllm.LLM`: submitted while there is room, and submitted again when they part."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm import LLM
from vllm.inputs.engine import tokens_input

from d2e_sft.util.errors import UserError
from d2e_sft.vllm.progress import PairProgress
from d2e_sft.vllm.requests import PairRequest, plain_parameters

# Submissions in a row without a token after which a pair gets the engine to itself, and after which it is given up.
_LONELY, _HOPELESS = 4, 12


@dataclass
class PairBatch:
    """One call of `decode_pairs`: which prompts wait, which are in the engine, what they have answered.

    Attributes:
        originals: token ids of every prompt.
        requests: the pairs among them, by index; the others are plain requests.
        max_new_tokens: tokens at most, the stop token counted.
        stops: tokens that end an answer.
        on_finished: called with index and new tokens of each answer.
    """

    llm: LLM
    originals: Sequence[Sequence[int]]
    requests: dict[int, PairRequest]
    max_new_tokens: int
    stops: tuple[int, ...]
    on_finished: Callable[[int, list[int]], object]
    progress: dict[int, PairProgress] = field(default_factory=dict)
    inside: dict[str, tuple[int, Any]] = field(default_factory=dict)
    answers: dict[int, list[int]] = field(default_factory=dict)
    parted: deque[int] = field(default_factory=deque)
    room: int = 0

    def run(self) -> list[list[int]]:
        """Decode everything.

        Returns:
            the new tokens of each prompt, in order.

        Raises:
            UserError: the engine never computes some pair in one step.
        """
        waiting = deque(range(len(self.originals)))
        self.progress = {i: request.progress() for i, request in self.requests.items()}
        rows = self.llm.llm_engine.vllm_config.scheduler_config.max_num_seqs
        if rows < 2 and self.requests:
            raise UserError(f"max_num_seqs={rows}: a pair is two sequences", remedy="start the engine with at least 2")
        self.room = rows
        try:
            while len(self.answers) < len(self.originals):
                self._submit(waiting)
                for output in self.llm.llm_engine.step():
                    if output.finished:
                        self._finished(output)
        finally:
            if self.inside:  # an error or an interrupt: nothing of this call stays in the engine
                self.llm.llm_engine.abort_request(list(self.inside))
        return [self.answers[i] for i in range(len(self.originals))]

    @property
    def resubmissions(self) -> int:
        """Submissions of pairs beyond the first of each."""
        return sum(max(0, progress.submissions - 1) for progress in self.progress.values())

    def _submit(self, waiting: deque[int]) -> None:
        """Fill the engine's rows, parted pairs first: a pair of which one row had to queue would part at once."""
        lonely = any(progress.fruitless >= _LONELY for progress in self.progress.values() if not progress.complete)
        while len(self.inside) + 2 <= self.room or not self.inside:
            if lonely and self.inside:
                return
            if self.parted:
                self._submit_pair(self.parted.popleft())
            elif waiting and not lonely:
                index = waiting.popleft()
                if index in self.requests:
                    self._submit_pair(index)
                else:
                    self._add(index, None, self.originals[index], plain_parameters(self.max_new_tokens, self.stops))
            else:
                return

    def _submit_pair(self, index: int) -> None:
        progress = self.progress[index]
        if progress.fruitless >= _HOPELESS:
            request = self.requests[index]
            raise UserError(
                f"prompt {index} ({len(request.original)} tokens, {len(request.imagined)} without context): the "
                f"engine computed the pair in different steps {progress.fruitless} times in a row",
                remedy="enable prefix caching, or raise max_num_batched_tokens above the tokens of both prompts",
            )
        rows = self.requests[index].submission(progress, stream=False)
        progress.submit()
        for view, prompt, parameters in rows:
            self._add(index, view, prompt["prompt_token_ids"], parameters)

    def _add(self, index: int, view: Any, tokens: Sequence[int], parameters: Any) -> None:
        name = f"d2e-{uuid.uuid4().hex}"
        self.inside[name] = (index, view)
        policy = self.llm.llm_engine.vllm_config.scheduler_config.policy
        again = index in self.progress and self.progress[index].submissions > 1
        self.llm.llm_engine.add_request(
            name,
            tokens_input(list(tokens)),
            parameters,
            priority=-1 if again and policy == "priority" else 0,
        )

    def _finished(self, output: Any) -> None:
        known = self.inside.pop(output.request_id, None)
        if known is None:
            return
        index, view = known
        tokens = list(output.outputs[0].token_ids)
        if view is None:
            self._complete(index, [token for token in tokens if token not in self.stops])
            return
        progress = self.progress[index]
        progress.report(view, tokens, ended=True)
        if progress.complete:
            self._complete(index, progress.answer)
        elif progress.outcome == "decoupled":
            self.parted.append(index)
            if not progress.fruitless:
                # Parted after it had begun: the cache is full. What is inside already fills it; more would only part.
                self.room = max(2, len(self.inside))

    def _complete(self, index: int, answer: list[int]) -> None:
        if index not in self.answers:
            self.answers[index] = answer
            self.room = min(self.room + 1, self.llm.llm_engine.vllm_config.scheduler_config.max_num_seqs)
            self.on_finished(index, answer)
