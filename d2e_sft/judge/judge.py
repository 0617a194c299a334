"""The engine that all jobs share: what is cached first, the rest asked, malformed replies asked for once more.

A reply is written to disk by the thread that received it, before anything else happens to it. So whatever ends a run
(an error, Ctrl-C, SIGKILL), the next one finds every reply that had arrived.
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
from d2e_sft.judge.usage import Budget, Estimate, Prices, Usage
from d2e_sft.util.errors import UserError

T = TypeVar("T")
_LOG_EVERY = 100  # replies, where there is no terminal for a progress bar


def make_judge(options: JudgeOptions) -> Judge | None:
    """The judge that the options describe; None for rules only. Nothing is loaded or asked yet.

    Raises:
        UserError: the endpoint or its key is missing or malformed, or the `openai` package is not installed.
    """
    if options.backend == "openai":
        from d2e_sft.judge.openai_backend import OpenAIBackend

        return Judge(OpenAIBackend(options), options)
    if options.backend == "local":
        from d2e_sft.judge.local_backend import LocalBackend

        return Judge(LocalBackend(options), options)
    return None


class Judge:
    """Asks a model many prompts, and reads its replies.

    Attributes:
        usage: counts of everything asked through this object.
    """

    def __init__(self, backend: Backend, options: JudgeOptions) -> None:
        self.usage = Usage()
        self._backend = backend
        self._max_tokens = options.max_tokens
        self._cache = ReplyCache(options.cache_folder, backend.identity)
        self._prices: Prices | None = None
        if options.price_in is not None and options.price_out is not None:
            self._prices = Prices(options.price_in, options.price_out)
        self._budget = Budget(self._prices, options.max_cost, options.max_tokens)

    def ask(
        self, prompts: Sequence[Prompt], parse: Callable[[str], T | None], *, what: str, reminder: str
    ) -> list[T | None]:
        """What the model says to each prompt, in order; None where it is undecided.

        Prompts that are the same are asked once. A reply that `parse` cannot read is asked for once more, with the
        reminder below the prompt; if that reply cannot be read either, the prompt is undecided.

        Args:
            parse: the reading of a reply, or None for one without the required form.
            what: names the job in the progress bar.
            reminder: says what form the reply must have.

        Raises:
            UserError: the model cannot be asked, or not any more; says how many replies are kept.
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

    def estimate(self, prompts: Sequence[Prompt]) -> Estimate:
        """What asking the prompts will take; asks nothing."""
        unique = list(dict.fromkeys(prompts))
        missing = [prompt for prompt in unique if self._cache.get(prompt, 1) is None]
        prompt_tokens = sum(self._backend.prompt_tokens(prompt) for prompt in missing)
        completion_tokens = len(missing) * self._max_tokens
        return Estimate(
            requests=len(missing),
            cached=len(unique) - len(missing),
            prompt_tokens=prompt_tokens,
            most_completion_tokens=completion_tokens,
            counted=self._backend.counts_tokens,
            most_cost=None if self._prices is None else self._prices.of(prompt_tokens, completion_tokens),
        )

    @property
    def address(self) -> str | None:
        """The endpoint that is asked; None for a model of this machine."""
        return self._backend.identity.get("base_url")

    def describe_usage(self) -> str:
        """Everything asked so far on one line, with its cost where prices are known."""
        return self.usage.describe(self._prices)

    def _read(
        self, prompts: Sequence[Prompt], parse: Callable[[str], T | None], asking: int, what: str
    ) -> list[T | None]:
        replies = self._replies(list(dict.fromkeys(prompts)), asking, what)
        read = {prompt: None if reply is None else parse(reply.text) for prompt, reply in replies.items()}
        return [read[prompt] for prompt in prompts]

    def _replies(self, prompts: Sequence[Prompt], asking: int, what: str) -> dict[Prompt, Reply | None]:
        replies: dict[Prompt, Reply | None] = {prompt: self._cache.get(prompt, asking) for prompt in prompts}
        missing = [prompt for prompt, reply in replies.items() if reply is None]
        self._tell_damage()
        self.usage.cached += len(prompts) - len(missing)
        if not missing:
            return replies
        self._cache.prepare()  # before anything is paid for
        with tqdm(
            desc=f"{what} ({self._backend.model})",
            total=len(prompts),
            initial=len(prompts) - len(missing),
            unit="reply",
            disable=None,
            leave=False,
        ) as bar:
            keeper = _Keeper(self._cache, self.usage, self._prices, self._budget, missing, replies, asking, bar, what)
            try:
                self._backend.answer(missing, keeper)
            except UserError as error:
                raise UserError(f"{error.message}; {self._kept(replies)}", error.remedy) from error
            except KeyboardInterrupt:
                tqdm.write(f"{what}: stopped; {self._kept(replies)}", file=sys.stderr)
                raise
        return replies

    def _tell_damage(self) -> None:
        if damaged := self._cache.damaged:
            files = "1 kept reply is" if len(damaged) == 1 else f"{len(damaged):,} kept replies are"
            tqdm.write(f"{files} damaged, such as {min(damaged)}; what they answered is asked again", sys.stderr)
            damaged.clear()

    def _kept(self, replies: dict[Prompt, Reply | None]) -> str:
        kept = sum(reply is not None for reply in replies.values())
        folder = self._cache.folder
        return f"{kept:,} of {len(replies):,} replies are kept in {folder}, and the next run goes on from there"


@dataclass
class _Keeper:
    """Takes replies from the back end's threads: to the disk, to the counts and to the progress bar."""

    cache: ReplyCache
    usage: Usage
    prices: Prices | None
    budget: Budget
    prompts: Sequence[Prompt]
    replies: dict[Prompt, Reply | None]
    asking: int
    bar: Any
    what: str
    done: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def received(self, index: int, reply: Reply | None) -> None:
        prompt = self.prompts[index]
        if reply is not None:
            self.cache.put(prompt, self.asking, reply)
        with self.lock:
            if reply is not None:
                self.budget.settle(prompt, self.usage.add(prompt, reply))
                self.replies[prompt] = reply
            self._show()
            self.bar.update()
            self._log()

    def sending(self, index: int) -> None:
        with self.lock:
            self.budget.reserve(self.prompts[index])

    def refused(self, index: int) -> None:
        with self.lock:
            self.budget.settle(self.prompts[index], (0, 0))

    def retried(self) -> None:
        with self.lock:
            self.usage.retried += 1
            self._show()
            self.bar.refresh()  # otherwise a throttled run looks like a dead one

    def _log(self) -> None:
        """Where there is no terminal there is no bar: a log gets a line now and then."""
        self.done += 1
        if self.bar.disable and self.done % max(_LOG_EVERY, len(self.prompts) // 20) == 0:
            spent = self.usage.spent(self.prices)
            print(f"{self.what}: {self.done:,} of {len(self.prompts):,} replies, {spent}", file=sys.stderr)

    def _show(self) -> None:
        retried = f", {self.usage.retried:,} retried" if self.usage.retried else ""
        self.bar.set_postfix_str(self.usage.spent(self.prices) + retried, refresh=False)
