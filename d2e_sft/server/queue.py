"""The thread that decodes: one batch at a time; the requests that wait when a batch ends are the next one.

A batch holds requests of one decoder, as many as fit the memory. A sampled request is a batch of its own, as its
draws depend on its place in a batch.
"""

from __future__ import annotations

import asyncio
import threading
import time
import traceback
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.decoding.budget import budget_of
from d2e_sft.decoding.generation import stream_with_ends
from d2e_sft.decoding.pairs import TokenPair
from d2e_sft.model.loading import LoadedModel
from d2e_sft.server.context import RequestError
from d2e_sft.server.openai import Finish
from d2e_sft.util.errors import UserError

# Seconds in which requests that are sent together reach the queue.
_ARRIVAL = 0.005


@dataclass(frozen=True)
class Piece:
    """The next text of an answer and its number of tokens so far; `finish` says why it ended, in its last piece."""

    index: int
    text: str
    tokens: int
    finish: Finish | None = None


@dataclass(frozen=True)
class Prompt:
    """What is decoded for a request: its prompts, how, and the tokens and texts that end the answer."""

    pair: TokenPair
    decoding: DecodingConfig
    stop_ids: tuple[int, ...]
    stops: Sequence[str] = ()

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for prompts that may be decoded together."""
        return self.decoding.decoder, self.decoding.plausibility, self.decoding.temperature, self.stop_ids


@dataclass(eq=False)
class Job:
    """A prompt in the queue. `deliver` gets the pieces of its answer or an error, from the thread that decodes."""

    prompt: Prompt
    index: int
    tokenizer: Any
    deliver: Callable[[Piece | Exception], None]
    left: bool = False  # nobody waits for the rest of the answer
    ended: bool = False
    _tokens: list[int] = field(default_factory=list)
    _sent: str = ""

    def take(self, token: int | None) -> None:
        """Add a token; None ends the answer."""
        if self.ended:
            return
        if token is not None:
            self._tokens.append(token)
        text = str(self.tokenizer.decode(self._tokens, skip_special_tokens=True))
        place = min((at for stop in self.prompt.stops if (at := text.find(stop)) >= 0), default=None)
        if place is not None:
            self._tell(text[:place], "stop")
        elif len(self._tokens) >= self.prompt.decoding.max_new_tokens:
            self._tell(text, "length")
        elif token is None:
            self._tell(text, "stop")
        else:
            # What may be the beginning of a stop text or of a character waits for the next token.
            held = max((len(stop) - 1 for stop in self.prompt.stops), default=0)
            ready = text.rstrip("\ufffd")
            self._tell(ready[: len(ready) - held] if held else ready, None)

    def _tell(self, text: str, finish: Finish | None) -> None:
        self.ended = finish is not None
        new = text[len(self._sent) :] if text.startswith(self._sent) or self.ended else ""
        if new or self.ended:
            self._sent += new
            self.deliver(Piece(self.index, new, len(self._tokens), finish))


class BatchQueue:
    """Decodes prompts with a model in a thread of its own.

    Args:
        loaded: ready to decode; nobody else may decode with it.
        most_waiting: prompts that may wait, beyond which requests are refused.
    """

    def __init__(self, loaded: LoadedModel, most_waiting: int) -> None:
        self._loaded = loaded
        self._most_waiting = most_waiting
        self._waiting: deque[Job | Callable[[], None]] = deque()
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="d2e-decoding", daemon=True).start()

    async def answers(self, prompts: Sequence[Prompt]) -> AsyncGenerator[Piece, None]:
        """Yield the pieces of all answers as they come; decoding them ends when the iterator is closed.

        Raises RequestError with status 429 if the queue is full, and whatever ends the decoding.
        """
        pieces, deliver = self._mailbox()
        tokenizer = self._loaded.tokenizer
        jobs = [Job(prompt, index, tokenizer, deliver) for index, prompt in enumerate(prompts)]
        self._enter(jobs)
        try:
            unfinished = len(jobs)
            while unfinished:
                piece = await pieces.get()
                if isinstance(piece, Exception):
                    raise piece
                unfinished -= piece.finish is not None
                yield piece
        finally:
            with self._changed:
                for job in jobs:
                    job.left = True
                    if job in self._waiting:
                        self._waiting.remove(job)

    def check_room(self, more: int) -> None:
        """Raise RequestError with status 429 unless that many prompts may enter; any number enters an empty queue."""
        waiting = len(self._waiting)
        if waiting and waiting + more > self._most_waiting:
            raise RequestError(f"{waiting} prompts are waiting; send the request again later", status=429)

    async def call(self, function: Callable[[Any], Any]) -> Any:
        """Call a function with the model when it is its turn, and return its result; errors as for `answers`."""
        results, deliver = self._mailbox()

        def run() -> None:
            try:
                deliver(function(self._loaded.model))
            except Exception as error:
                deliver(_reported(error))

        self._enter([run])
        result = await results.get()
        if isinstance(result, Exception):
            raise result
        return result

    def _mailbox(self) -> tuple[asyncio.Queue[Any], Callable[[Any], None]]:
        """A queue of the event loop, and how the thread puts something into it."""
        loop, box = asyncio.get_running_loop(), asyncio.Queue[Any]()

        def deliver(content: Any) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(box.put_nowait, content)

        return box, deliver

    def _enter(self, jobs: Sequence[Job | Callable[[], None]]) -> None:
        self.check_room(len(jobs))
        with self._changed:
            self._waiting.extend(jobs)
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
            time.sleep(_ARRIVAL)
            with self._changed:
                if not self._waiting:  # its client has left
                    continue
                first = self._waiting.popleft()
                batch = [first, *self._companions(first)] if isinstance(first, Job) else []
            if isinstance(first, Job):
                self._decode(batch)
            else:
                first()

    def _companions(self, first: Job) -> list[Job]:
        """Remove from the queue the prompts that can be decoded together with the first, in order."""
        decoding = first.prompt.decoding
        if decoding.temperature > 0:
            return []
        budget, found = budget_of(self._loaded.model, decoding), [first]
        for job in list(self._waiting):
            if not isinstance(job, Job) or job.prompt.key != first.prompt.key:
                continue
            several = [*found, job]
            longest = max(one.prompt.decoding.max_new_tokens for one in several)
            cost = replace(budget, new_tokens=longest).cost([one.prompt.pair for one in several])
            if len(several) <= budget.pairs and cost <= budget.tokens:
                found.append(job)
                self._waiting.remove(job)
        return found[1:]

    def _decode(self, jobs: list[Job]) -> None:
        prompts, left = [job.prompt for job in jobs], set[int]()
        longest = max(prompt.decoding.max_new_tokens for prompt in prompts)
        decoding = replace(prompts[0].decoding, max_new_tokens=longest)
        pairs = [prompt.pair for prompt in prompts]
        try:
            steps = stream_with_ends(self._loaded.model, pairs, decoding, stop_ids=prompts[0].stop_ids, left=left)
            for index, token in steps:
                jobs[index].take(token)
                left.update(place for place, job in enumerate(jobs) if job.ended or job.left)
        except Exception as error:
            for job in jobs:
                if not job.ended:
                    job.deliver(_reported(error))


def _reported(error: Exception) -> Exception:
    """The error as its request's answer; one that is not the user's is printed in full."""
    if isinstance(error, UserError):
        return RequestError(error.message, status=500)
    traceback.print_exception(error)
    reason = str(error).strip().split("\n")[0][:200]
    return RequestError(f"the model could not answer ({type(error).__name__}: {reason})", status=500)
