"""The engine that all jobs share: look in the cache, ask the rest, ask once more for malformed replies.

The thread that receives a reply writes it to disk before it asks for another. So whatever ends a run (an error,
Ctrl-C, SIGKILL), the next one finds every reply that had arrived.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from tqdm import tqdm

from d2e_sft.judge.cache import ReplyCache
from d2e_sft.judge.messages import Backend, Prompt, Reply
from d2e_sft.judge.options import JudgeOptions
from d2e_sft.judge.usage import Usage
from d2e_sft.util.errors import UserError, shortened
from d2e_sft.util.progress import Progress
from d2e_sft.util.terminal import is_quiet

T = TypeVar("T")
_Read = Callable[[Prompt, Reply], None]
_LOG_EVERY = 100  # replies, without a terminal for a progress bar


def make_judge(options: JudgeOptions) -> Judge | None:
    """Return the judge that the options describe, or None for rules only; loads and asks nothing yet.

    Raises UserError if the endpoint or its key is missing or malformed, or the `openai` package is not installed.
    """
    if options.backend == "openai":
        from d2e_sft.judge.openai_backend import OpenAIBackend

        return Judge(OpenAIBackend(options), options)
    if options.backend == "local":
        from d2e_sft.judge.local_backend import LocalBackend

        return Judge(LocalBackend(options), options)
    return None


class Judge:
    """Asks a model many prompts and parses its replies.

    Attributes:
        options: how it is asked.
        usage: counts and cost of everything asked through this object.
        cache: of the replies.
    """

    def __init__(self, backend: Backend, options: JudgeOptions) -> None:
        self.options = options
        self.usage = Usage(options)
        self.cache = ReplyCache(options.cache_folder, backend.identity)
        self._backend = backend
        self._unusable = ""  # the last reply without the required form

    def ask(
        self, prompts: Sequence[Prompt], parse: Callable[[str], T | None], *, what: str, reminder: str
    ) -> list[T | None]:
        """Return the parsed reply to each prompt, in order; None if the model is undecided.

        Equal prompts are asked once. If `parse` rejects a reply, the prompt is asked once more with the reminder below
        it; if it rejects that reply too, the prompt is undecided.

        Args:
            parse: returns None for a reply without the required form.
            what: name of the job in the progress bar.
            reminder: states the required form.

        Raises:
            UserError: the model cannot be asked; says how many replies are kept.
        """
        readings = self._read(prompts, parse, 1, what)
        unread = [i for i, reading in enumerate(readings) if reading is None]
        if unread:
            again = [replace(prompts[i], user=f"{prompts[i].user}\n\n{reminder}") for i in unread]
            self.usage.reasked += len(set(again))
            for i, reading in zip(unread, self._read(again, parse, 2, f"{what}, once more"), strict=True):
                readings[i] = reading
        self.usage.undecided += sum(reading is None for reading in readings)
        return readings

    def require_usable(self, what: str, usable: int, asked: int) -> None:
        """Raise UserError if no reply about the samples of a job was usable: another model is needed.

        Args:
            usable: Samples that got a usable reply, of `asked`.
        """
        if asked and not usable:
            shown = f", such as {shortened(self._unusable)}" if self._unusable else ""
            raise UserError(
                f"{what}: none of the replies of {self._backend.model} about {asked:,} samples is usable{shown}",
                remedy="name a larger model (--judge-model), or let replies be longer (--judge-max-tokens)",
            )

    def estimate(self, prompts: Sequence[Prompt]) -> str:
        """Return the requests, tokens and highest cost that the prompts would take; asks nothing."""
        unique = list(dict.fromkeys(prompts))
        missing = [prompt for prompt in unique if self.cache.get(prompt, 1) is None]
        asked = sum(self._backend.prompt_tokens(prompt) for prompt in missing)
        answered = len(missing) * self.options.max_tokens
        counted = self._backend.counts_tokens
        cost = "a local model" if counted else "no price given (--judge-price)"
        if self.options.prices is not None:
            cost = f"at most ${self.usage.cost(asked, answered):.4f}"
        return (
            f"{len(missing):,} requests ({len(unique) - len(missing):,} replies already cached), {asked:,} prompt "
            f"tokens ({'counted' if counted else 'guessed at 4 characters per token'}), at most {answered:,} reply "
            f"tokens; {cost}; a malformed reply costs one request more"
        )

    @property
    def address(self) -> str | None:
        """Address of the endpoint; None for a local model."""
        return self._backend.identity.get("base_url")

    def _read(
        self, prompts: Sequence[Prompt], parse: Callable[[str], T | None], asking: int, what: str
    ) -> list[T | None]:
        readings: dict[Prompt, T | None] = {}

        def read(prompt: Prompt, reply: Reply) -> None:
            readings[prompt] = parse(reply.text)  # the replies themselves may not fit in memory
            if readings[prompt] is None:
                self._unusable = reply.text

        self._get_replies(list(dict.fromkeys(prompts)), asking, what, read)
        return [readings.get(prompt) for prompt in prompts]

    def _get_replies(self, prompts: Sequence[Prompt], asking: int, what: str, read: _Read) -> None:
        missing = []
        for prompt in prompts:
            reply = self.cache.get(prompt, asking)
            if reply is None:
                missing.append(prompt)
            else:
                read(prompt, reply)
        if damaged := self.cache.damaged:
            files = "1 kept reply is" if len(damaged) == 1 else f"{len(damaged):,} kept replies are"
            tqdm.write(f"{files} damaged, such as {min(damaged)}; their prompts are asked again", sys.stderr)
            damaged.clear()
        self.usage.cached += len(prompts) - len(missing)
        if not missing:
            return
        self.cache.prepare()  # before anything is paid for
        with Progress(
            desc=f"{what} ({self._backend.model})",
            total=len(prompts),
            initial=len(prompts) - len(missing),
            unit="reply",
            disable=None,  # the log has lines of its own
        ) as bar:
            keeper = _Keeper(self, missing, read, asking, bar, what)
            try:
                self._backend.answer(missing, keeper)
            except UserError as error:
                raise UserError(f"{error.message}; {self._kept(keeper, len(prompts))}", error.remedy) from error
            except KeyboardInterrupt:
                tqdm.write(f"{what}: stopped; {self._kept(keeper, len(prompts))}", file=sys.stderr)
                raise

    def _kept(self, keeper: _Keeper, total: int) -> str:
        kept = total - len(keeper.prompts) + keeper.kept
        return f"{kept:,} of {total:,} replies are kept in {self.cache.folder}, and the next run resumes there"


@dataclass
class _Keeper:
    """Takes replies from the back end to the disk, the counts and the progress bar."""

    judge: Judge
    prompts: Sequence[Prompt]
    read: _Read
    asking: int
    bar: Any
    what: str
    kept: int = 0
    done: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def received(self, index: int, reply: Reply | None) -> None:
        prompt, judge = self.prompts[index], self.judge
        if reply is not None:
            judge.cache.put(prompt, self.asking, reply)
        with self.lock:
            if reply is not None:
                judge.usage.add(prompt, reply)
                self.read(prompt, reply)
                self.kept += 1
            self.done += 1
            self._show()
            self.bar.update()
            # Without a terminal there is no bar, so the log gets a line now and then.
            if self.bar.disable and not is_quiet() and self.done % max(_LOG_EVERY, len(self.prompts) // 20) == 0:
                spent = judge.usage.spent()
                print(f"{self.what}: {self.done:,} of {len(self.prompts):,} replies, {spent}", file=sys.stderr)

    def sending(self, index: int, *, retry: bool) -> None:
        with self.lock:
            if retry:
                self.judge.usage.retried += 1
                self._show()
                self.bar.refresh()  # otherwise a throttled run looks dead
            self.judge.usage.reserve(self.prompts[index])

    def refused(self, index: int) -> None:
        with self.lock:
            self.judge.usage.release(self.prompts[index])

    def _show(self) -> None:
        usage = self.judge.usage
        retried = f", {usage.retried:,} retried" if usage.retried else ""
        self.bar.set_postfix_str(usage.spent() + retried, refresh=False)
