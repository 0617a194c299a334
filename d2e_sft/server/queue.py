"""The thread that decodes: one batch at a time; the requests that wait when a batch ends are the next one.

A batch holds prompts of one decoder, as many as fit the memory. A sampled prompt is a batch of its own: prompts that
are decoded together share a seed, and each one's draws follow from the seed and its index among them.
"""

import asyncio
import threading
import time
import traceback
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.decoding.generation import generate
from d2e_sft.decoding.pairs import Output, TokenPair
from d2e_sft.decoding.rows import budget_of, decodes_packed
from d2e_sft.model.loading import LoadedModel
from d2e_sft.server.openai import Finish, RequestError
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
class QueuedJob:
    """A prompt in the queue. `deliver` gets the pieces of its answer or an error, from the thread that decodes."""

    prompt: Prompt
    index: int
    deliver: Callable[[Piece | Exception], None]
    left: bool = False  # nobody waits for the rest of the answer
    ended: bool = False
    _tokens: int = 0
    _sent: str = ""

    def take(self, output: Output) -> None:
        """Deliver what an answer has more than before."""
        text, self._tokens = output.text, len(output.tokens)
        place = min((at for stop in self.prompt.stops if (at := text.find(stop)) >= 0), default=None)
        if place is not None:
            self._tell(text[:place], "stop")
        elif self._tokens >= self.prompt.decoding.max_new_tokens:
            self._tell(text, "length")
        elif output.ended:
            self._tell(text, "stop")
        else:
            # What may be the beginning of a stop text or of a character waits for the next token.
            held = max((len(stop) - 1 for stop in self.prompt.stops), default=0)
            ready = text.rstrip("\ufffd")
            self._tell(ready[: max(0, len(ready) - held)], None)

    def _tell(self, text: str, finish: Finish | None) -> None:
        self.ended = finish is not None
        new = text[len(self._sent) :] if text.startswith(self._sent) or self.ended else ""
        if new or self.ended:
            self._sent += new
            self.deliver(Piece(self.index, new, self._tokens, finish))


class BatchQueue:
    """Decodes prompts with a model in a thread of its own; nobody else may decode with the model.

    A request may have `most_waiting` prompts, and as many may wait; more are refused.
    """

    def __init__(self, loaded: LoadedModel, most_waiting: int) -> None:
        self._loaded = loaded
        self._most_waiting = most_waiting
        self._waiting: deque[QueuedJob | Callable[[], None]] = deque()
        self._changed = threading.Condition()
        decodes_packed(loaded.model)  # measured once, by forwards whose errors belong here
        threading.Thread(target=self._run, name="d2e-decoding", daemon=True).start()

    async def answers(self, prompts: Sequence[Prompt]) -> AsyncGenerator[Piece, None]:
        """Yield the pieces of all answers as they come; decoding them ends when the iterator is closed."""
        pieces, deliver = self._mailbox()
        jobs = [QueuedJob(prompt, index, deliver) for index, prompt in enumerate(prompts)]
        unfinished = len(jobs)
        with self._entered(jobs):
            try:
                while unfinished:
                    piece = await pieces.get()
                    if isinstance(piece, Exception):
                        raise piece
                    unfinished -= piece.finish is not None
                    yield piece
            finally:
                for job in jobs:
                    job.left = True

    def check_room(self, more: int) -> None:
        """Raise RequestError unless that many prompts may enter: status 429 if later they may, else 400."""
        waiting, most = len(self._waiting), self._most_waiting
        if more > most:
            raise RequestError(f"{more:,} prompts in a request; expected at most {most:,} (--max-queue)", "prompt")
        if waiting + more > most:
            raise RequestError(f"{waiting} prompts are waiting; send the request again later", status=429)

    async def call(self, function: Callable[[Any, Any], Any], values: Sequence[Any]) -> list[Any]:
        """Call a function with the model and each value when it is their turn, until the caller is cancelled."""
        results, deliver = self._mailbox()
        left = threading.Event()

        def run() -> None:
            try:
                deliver([function(self._loaded.model, value) for value in values if not left.is_set()])
            except Exception as error:
                deliver(_reported(error))

        with self._entered([run]):
            try:
                outcome = await results.get()
            finally:
                left.set()
        if isinstance(outcome, Exception):
            raise outcome
        return list(outcome)

    def _mailbox(self) -> tuple[asyncio.Queue[Any], Callable[[Any], None]]:
        """Return a queue of the event loop, and how the thread puts something into it."""
        loop, box = asyncio.get_running_loop(), asyncio.Queue[Any]()

        def deliver(content: Any) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(box.put_nowait, content)

        return box, deliver

    @contextmanager
    def _entered(self, jobs: Sequence[QueuedJob | Callable[[], None]]) -> Iterator[None]:
        """Put jobs into the queue; those that still wait when the block is left leave it."""
        self.check_room(len(jobs))
        with self._changed:
            self._waiting.extend(jobs)
            self._changed.notify()
        try:
            yield
        finally:
            self._remove(jobs)

    def _remove(self, jobs: Sequence[QueuedJob | Callable[[], None]]) -> None:
        with self._changed:
            gone = set(jobs)
            self._waiting = deque(job for job in self._waiting if job not in gone)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
            time.sleep(_ARRIVAL)
            with self._changed:
                if not self._waiting:  # its client has left
                    continue
                first = self._waiting.popleft()
            if not isinstance(first, QueuedJob):
                first()
                continue
            jobs = [first]
            try:
                jobs += self._companions(first)
                self._decode(jobs)
            except Exception as error:  # it goes to all requests of the batch
                reported = _reported(error)
                for job in jobs:
                    if not job.ended:
                        job.deliver(reported)

    def _companions(self, first: QueuedJob) -> list[QueuedJob]:
        """Remove from the queue the prompts that can be decoded together with the first, in order."""
        decoding = first.prompt.decoding
        if decoding.temperature > 0:
            return []
        budget, batch = budget_of(self._loaded.model, decoding), [first]
        with self._changed:
            waiting = list(self._waiting)
        for job in waiting:
            if len(batch) >= budget.pairs:
                break
            if not isinstance(job, QueuedJob) or job.prompt.key != first.prompt.key:
                continue
            candidates = [*batch, job]
            longest = max(member.prompt.decoding.max_new_tokens for member in candidates)
            cost = replace(budget, new_tokens=longest).cost([member.prompt.pair for member in candidates])
            if cost <= budget.tokens:
                batch.append(job)
        self._remove(batch)
        return batch[1:]

    def _decode(self, jobs: list[QueuedJob]) -> None:
        prompts = [job.prompt for job in jobs]
        longest = max(prompt.decoding.max_new_tokens for prompt in prompts)
        decoding = replace(prompts[0].decoding, max_new_tokens=longest)
        pairs = [prompt.pair for prompt in prompts]
        model, tokenizer = self._loaded.model, self._loaded.tokenizer
        for output in generate(model, tokenizer, pairs, decoding, stop_ids=prompts[0].stop_ids):
            job = jobs[output.index]
            job.take(output)
            output.cancelled = job.ended or job.left


def _reported(error: Exception) -> Exception:
    """Return the error as its request's answer; one that is not the user's is printed in full."""
    if isinstance(error, UserError):
        return RequestError(error.one_line, status=500)
    traceback.print_exception(error)
    reason = str(error).strip().split("\n")[0][:200]
    return RequestError(f"the model could not answer ({type(error).__name__}: {reason})", status=500)
