"""The judge: prompts in, parsed verdicts out; every reply is kept, so that none is paid for twice.

The thread that receives a reply writes it to disk before another request is sent. So whatever ends a run (an error,
Ctrl-C, SIGKILL), the next one finds every reply that had arrived.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from tqdm import tqdm

from d2e_sft.judge.options import JudgeOptions
from d2e_sft.util.errors import UserError, shortened
from d2e_sft.util.files import replacing
from d2e_sft.util.paths import cache_dir
from d2e_sft.util.progress import Progress

if TYPE_CHECKING:
    from d2e_sft.judge.endpoint import OpenAIBackend
    from d2e_sft.judge.local import LocalBackend

T = TypeVar("T")
_LARGEST = 32 << 20  # bytes of a kept reply; an answer of an endpoint has at most half as many


@dataclass(frozen=True)
class JudgePrompt:
    """A question to a judge, asked for the `asking`-th time; `label` names it to the user, ignored in comparisons."""

    system: str
    user: str
    label: str = field(default="", compare=False)
    asking: int = 1

    @property
    def messages(self) -> list[dict[str, str]]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, {"role": "user", "content": self.user}]

    @property
    def guessed_tokens(self) -> int:
        """Tokens of the prompt, by `guess_tokens`."""
        return guess_tokens(self.system) + guess_tokens(self.user)


class Reply(BaseModel):
    """A judge's answer; `text` is unchanged, and `cut_off` says that it ended at the token limit.

    Tokens are as the back end counted them; None if it did not.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    text: str
    prompt_tokens: int | None = Field(default=None, ge=0)
    completion_tokens: int | None = Field(default=None, ge=0)
    cut_off: bool = False


def guess_tokens(text: str) -> int:
    """Return one token for four characters, the usual rule of thumb; too few for scripts other than Latin."""
    return -(-len(text) // 4)


@dataclass
class Usage:
    """Counts of everything asked so far, and their cost; safe for several threads.

    Attributes:
        prices: USD per million prompt and reply tokens.
        max_cost: In USD.
        max_tokens: Token limit of one reply.
        retried: Requests sent again because the server throttled, failed, stalled or dropped them.
        reasked: Prompts asked a second time because the first reply did not have the required form.
        undecided: Samples that still have no usable reply after that.
        cut_off: Replies that ended at the token limit.
        prompt_tokens, completion_tokens: Counts of the received replies; failed requests may have been charged too.
        guessed: Whether some tokens were estimated from the text's length, because the server did not count them.
        charged: USD spent or reserved for open requests, if there is a limit.
    """

    prices: tuple[float, float] | None = None
    max_cost: float | None = None
    max_tokens: int = 0
    asked: int = 0
    cached: int = 0
    retried: int = 0
    reasked: int = 0
    undecided: int = 0
    cut_off: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    guessed: bool = False
    charged: float = 0.0
    _lock: Any = field(default_factory=threading.Lock, repr=False)

    def cost(self, prompt_tokens: int, completion_tokens: int) -> float:
        """Return the price of these numbers of tokens in USD; 0 without prices."""
        price_in, price_out = self.prices or (0.0, 0.0)
        return (prompt_tokens * price_in + completion_tokens * price_out) / 1e6

    def sending(self, prompt: Any, *, retry: bool) -> None:
        """Reserve a request's highest cost, also if it breaks off (it may be charged); UserError beyond the limit."""
        with self._lock:
            self.retried += retry
            most = self._most(prompt)
            if self.max_cost is not None and self.charged + most > self.max_cost:
                raise UserError(
                    f"the next request may cost ${most:.4f} and ${self.charged:.4f} are spent or reserved; expected "
                    f"at most ${self.max_cost:g} together (--judge-max-cost)",
                    remedy="raise it and run again: kept replies are not asked for again",
                )
            self.charged += most

    def refused(self, prompt: Any) -> None:
        """Cancel the reservation of a request that was refused, which costs nothing."""
        with self._lock:
            self.charged -= self._most(prompt)

    def add(self, prompt: JudgePrompt, reply: Reply) -> None:
        """Count a received reply, and replace its request's reservation by its cost."""
        prompt_tokens, completion_tokens = reply.prompt_tokens, reply.completion_tokens
        with self._lock:
            self.asked += 1
            self.cut_off += reply.cut_off
            self.guessed |= prompt_tokens is None or completion_tokens is None
            prompt_tokens = prompt.guessed_tokens if prompt_tokens is None else prompt_tokens
            completion_tokens = guess_tokens(reply.text) if completion_tokens is None else completion_tokens
            self.prompt_tokens += prompt_tokens
            self.completion_tokens += completion_tokens
            self.charged += self.cost(prompt_tokens, completion_tokens) - self._most(prompt)

    def _most(self, prompt: Any) -> float:
        return 0.0 if self.prices is None else self.cost(prompt.guessed_tokens, self.max_tokens)

    def spent(self) -> str:
        """Return the cost so far, or the tokens if no price is known."""
        about = "about " if self.guessed else ""
        if self.prices is None:
            return f"{about}{self.prompt_tokens + self.completion_tokens:,} tokens"
        return f"{about}${self.cost(self.prompt_tokens, self.completion_tokens):.4f}"

    def describe(self) -> str:
        """Return all counts on one line, with the cost if prices are known."""
        about = "about " if self.guessed else ""
        cut_off = f", {self.cut_off:,} cut off (raise --judge-max-tokens)" if self.cut_off else ""
        return (
            f"{self.asked:,} replies received, {self.cached:,} already cached; {self.retried:,} requests retried, "
            f"{self.reasked:,} prompts re-asked, {self.undecided:,} undecided{cut_off}; "
            f"{about}{self.prompt_tokens:,} prompt + {self.completion_tokens:,} reply tokens"
            + ("" if self.prices is None else f", {self.spent()}")
        )


class _Kept(BaseModel):
    reply: Reply
    check: str


class ReplyCache:
    """The replies in a folder, one small file each; safe for several threads and processes.

    A file's name is a hash of everything that the reply depends on: prompt, back end, model, sampling, and address.
    (Servers at different addresses serve different models under one name.) Each file has a checksum.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        self.folder = folder
        self.damaged: set[Path] = set()
        self._identity = dict(identity)

    def get(self, prompt: JudgePrompt) -> Reply | None:
        """Return the reply to a prompt, if any; damaged files go to `damaged`."""
        path = self._path(prompt)
        try:
            with path.open("rb") as file:
                content = file.read(_LARGEST)
        except OSError:
            return None
        try:
            kept = _Kept.model_validate_json(content)
            if kept.check == _check(path, kept.reply):
                return kept.reply
        except ValidationError:
            pass
        self.damaged.add(path)
        return None

    def prepare(self) -> None:
        """Create the folder; UserError if that fails or it cannot be written."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _unwritable(self.folder, str(error.strerror)) from None
        if not os.access(self.folder, os.W_OK | os.X_OK):
            raise _unwritable(self.folder, "no permission")

    def put(self, prompt: JudgePrompt, reply: Reply) -> None:
        """Write a reply, all of it or nothing; UserError if that fails, since the reply would be paid for again."""
        path = self._path(prompt)
        try:
            with replacing(path, shared=True) as partial:  # several threads may write the same reply
                kept = _Kept(reply=reply, check=_check(path, reply))
                partial.write_text(kept.model_dump_json(), encoding="utf-8")
        except OSError as error:
            raise _unwritable(path, str(error.strerror)) from None

    def _path(self, prompt: JudgePrompt) -> Path:
        content = {**self._identity, "system": prompt.system, "user": prompt.user, "asking": prompt.asking}
        key = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        return self.folder / key[:2] / f"{key}.json"


def _check(path: Path, reply: Reply) -> str:
    """Return 16 hexadecimal digits of a hash of the reply and its place."""
    return hashlib.sha256(f"{path.stem}\n{reply.model_dump_json()}".encode()).hexdigest()[:16]


def _unwritable(path: Path, reason: str) -> UserError:
    return UserError(
        f"{path}: the judge's replies cannot be kept ({reason})",
        remedy="make room, or name a folder that can be written: --judge-cache DIR, or D2E_CACHE",
    )


def make_judge(options: JudgeOptions, *, asking: bool = True) -> Judge | None:
    """Return the judge that the options describe, or None for rules only; loads and asks nothing yet.

    Without `asking`, it is for estimates and needs no key.
    """
    if options.backend == "openai":
        from d2e_sft.judge.endpoint import OpenAIBackend

        return Judge(OpenAIBackend(options, asking=asking), options)
    if options.backend == "local":
        from d2e_sft.judge.local import LocalBackend

        return Judge(LocalBackend(options), options)
    return None


class Judge:
    """Asks a model many prompts and parses its replies; `usage` counts everything asked through this object."""

    def __init__(self, backend: OpenAIBackend | LocalBackend, options: JudgeOptions) -> None:
        self.options = options
        self.usage = Usage(options.prices, options.max_cost, options.max_tokens)
        self.cache = ReplyCache(options.cache or cache_dir() / "judge", backend.identity)
        self._backend = backend
        self._unusable = ""  # the last reply without the required form

    def ask(
        self, prompts: Sequence[JudgePrompt], parse: Callable[[str], T | None], *, job: str, reminder: str
    ) -> list[T | None]:
        """Return the parsed reply to each prompt, in order; None if the model is undecided.

        Equal prompts are asked once. If `parse` returns None for a reply, the prompt is asked once more with the
        reminder of the required form. If it rejects that reply too, the prompt is undecided. Raises UserError, with
        how many replies are kept, if the model cannot be asked. `job` is its name in the progress bar.
        """
        readings = self._read(prompts, parse, job)
        unread = [i for i, reading in enumerate(readings) if reading is None]
        if unread:
            reminded = [replace(prompts[i], user=f"{prompts[i].user}\n\n{reminder}", asking=2) for i in unread]
            self.usage.reasked += len(set(reminded))
            for i, reading in zip(unread, self._read(reminded, parse, f"{job}, once more"), strict=True):
                readings[i] = reading
        self.usage.undecided += sum(reading is None for reading in readings)
        return readings

    def require_usable(self, job: str, usable: int, samples: int) -> None:
        """Raise UserError if no reply about the samples of a job was usable: another model is needed."""
        if samples and not usable:
            shown = f", such as {shortened(self._unusable)}" if self._unusable else ""
            raise UserError(
                f"{job}: none of the replies of {self._backend.model} about {samples:,} samples is usable{shown}",
                remedy="name a larger model (--judge-model), or let replies be longer (--judge-max-tokens)",
            )

    def estimate(self, prompts: Sequence[JudgePrompt]) -> str:
        """Return the requests, tokens and highest cost that the prompts would take; asks nothing."""
        unique = list(dict.fromkeys(prompts))
        missing = [prompt for prompt in unique if self.cache.get(prompt) is None]
        sent = sum(self._backend.prompt_tokens(prompt) for prompt in missing)
        answered = len(missing) * self.options.max_tokens
        counted = self._backend.counts_tokens
        cost = "a local model" if counted else "no price given (--judge-price)"
        if self.options.prices is not None:
            cost = f"at most ${self.usage.cost(sent, answered):.4f}"
        return (
            f"{len(missing):,} requests ({len(unique) - len(missing):,} replies already cached), {sent:,} prompt "
            f"tokens ({'counted' if counted else 'guessed at 4 characters per token'}), at most {answered:,} reply "
            f"tokens; {cost}; a malformed reply costs one request more"
        )

    def _keep(self, prompt: JudgePrompt, reply: Reply) -> None:
        self.cache.put(prompt, reply)
        self.usage.add(prompt, reply)

    @property
    def address(self) -> str | None:
        """Address of the endpoint; None for a local model."""
        return self._backend.identity.get("base_url")

    def _read(self, prompts: Sequence[JudgePrompt], parse: Callable[[str], T | None], job: str) -> list[T | None]:
        unique, missing = list(dict.fromkeys(prompts)), []
        readings: dict[JudgePrompt, T | None] = {}

        def read(prompt: JudgePrompt, reply: Reply) -> None:
            readings[prompt] = parse(reply.text)  # the replies themselves may not fit in memory
            if readings[prompt] is None:
                self._unusable = reply.text

        for prompt in unique:
            reply = self.cache.get(prompt)
            if reply is None:
                missing.append(prompt)
            else:
                read(prompt, reply)
        self.usage.cached += len(unique) - len(missing)
        if damaged := self.cache.damaged:
            files = "1 kept reply is" if len(damaged) == 1 else f"{len(damaged):,} kept replies are"
            tqdm.write(f"{files} damaged, such as {min(damaged)}; their prompts are asked again", sys.stderr)
            damaged.clear()
        if missing:
            self.cache.prepare()  # before anything is paid for
            self._ask_missing(missing, len(unique), job, read)
        return [readings.get(prompt) for prompt in prompts]

    def _ask_missing(
        self, prompts: Sequence[JudgePrompt], total: int, job: str, read: Callable[[JudgePrompt, Reply], None]
    ) -> None:
        """Read the replies as they come, with a bar; an error says how many are kept."""
        usage, earlier = self.usage, total - len(prompts) - self.usage.asked
        with Progress(
            desc=f"{job} ({self._backend.model})", total=total, initial=total - len(prompts), unit="reply"
        ) as bar:
            try:
                with closing(self._backend.answers(prompts, usage, self._keep)) as answers:
                    for index, reply in answers:
                        if reply is not None:
                            read(prompts[index], reply)
                        retried = f", {usage.retried:,} retried" * bool(usage.retried)
                        bar.set_postfix_str(usage.spent() + retried, refresh=False)
                        bar.update()
            except (UserError, KeyboardInterrupt) as error:
                kept = f"{earlier + usage.asked:,} of {total:,} replies are kept in {self.cache.folder}"
                if isinstance(error, UserError):
                    message = f"{error.message}; {kept}, and the next run resumes there"
                    raise UserError(message, error.remedy) from error
                tqdm.write(f"{job}: stopped; {kept}, and the next run resumes there", file=sys.stderr)
                raise
