"""Any OpenAI-compatible endpoint, asked by a few threads at once.

The `openai` client builds and sends the requests. Its own retries are switched off, so that every request is counted
and a stopped run waits for none; an answer has a longest time and a largest size (`bounded.py`); and a reply is read
from its bytes, since the client hands on whatever a server sends with status 200, be it a web page.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from pydantic import BaseModel, Field, ValidationError
from tqdm import tqdm

from d2e_sft.judge.bounded import PATIENCE, UnboundedAnswerError, bounded_client
from d2e_sft.judge.messages import Conversation, Listener, Prompt, Reply, guess_tokens
from d2e_sft.judge.options import JUDGE, Caller, EndpointOptions, find_endpoint
from d2e_sft.judge.retry import Gate, StoppedError, asked_wait, backoff, is_transient
from d2e_sft.judge.workers import OverdueError, Workers
from d2e_sft.util.errors import UserError

# So many replies in a row that are none: this is no chat endpoint, and the rest need not be tried.
_MOST_UNUSABLE = 5
_SHOWN = 300
_GRACE = 3.0  # seconds for replies under way after Ctrl-C
_LIMIT, _NEW_LIMIT = "max_tokens", "max_completion_tokens"


class OpenAIBackend:
    """Sends prompts to `/chat/completions`.

    Args:
        caller: who asks, for messages to the user.

    Raises:
        UserError: the address or the key is missing or malformed, or the `openai` package is not installed.
    """

    counts_tokens = False

    def __init__(self, options: EndpointOptions, caller: Caller = JUDGE) -> None:
        assert options.model is not None
        self.model = options.model
        self._options = options
        self._caller = caller
        self._endpoint = find_endpoint(options, caller)
        self._openai = _import_openai(caller)
        self._unusable = 0  # replies in a row that were none
        self._lock = threading.Lock()
        self._limit = _LIMIT

    @property
    def identity(self) -> dict[str, Any]:
        return {
            "backend": "openai",
            "base_url": self._endpoint.url,
            "model": self.model,
            "max_tokens": self._options.max_tokens,
            "temperature": self._options.temperature,
        }

    def prompt_tokens(self, prompt: Prompt) -> int:
        return guess_tokens(prompt.system) + guess_tokens(prompt.user)

    def answer(self, prompts: Sequence[Conversation], listener: Listener) -> None:
        gate = Gate()
        endpoint, timeout = self._endpoint, self._options.timeout
        client = self._openai.OpenAI(
            api_key=endpoint.key,
            base_url=endpoint.url,
            timeout=timeout,
            max_retries=0,
            http_client=bounded_client(self._openai, timeout),
        )

        def ask(index: int) -> None:
            try:
                reply = self._send_until_answered(client, index, prompts[index], listener, gate)
                workers.deliver(lambda: listener.received(index, reply))
            except StoppedError:
                return
            except BaseException:
                gate.stop()  # at once: until the main thread learns of it, others would go on to their next prompt
                raise

        grace = timeout
        workers = Workers(self._options.concurrency, ask, len(prompts))
        try:
            workers.wait(self._longest_item())
        except OverdueError:
            grace = 0.0
            raise UserError(
                f"{self._named()}: has not answered one prompt in {self._longest_item():,.0f} s, with all attempts",
                remedy="check that this is a chat endpoint; then run again",
            ) from None
        except KeyboardInterrupt:
            grace = min(_GRACE, timeout)
            tqdm.write(f"stopping: {workers.under_way()} replies under way are waited for, {grace:g} s", sys.stderr)
            raise
        finally:
            gate.stop()
            workers.leave(grace)  # what is under way is paid, so its replies are kept
            client.close()

    def _longest_item(self) -> float:
        """Seconds in which one prompt is answered or given up, whatever the server does."""
        attempt = (PATIENCE + 1) * self._options.timeout + 2 * self._options.longest_wait
        return self._options.attempts * attempt + 1

    def _send_until_answered(
        self, client: Any, index: int, prompt: Conversation, listener: Listener, gate: Gate
    ) -> Reply | None:
        pause = 0.0
        for attempt in range(1, self._options.attempts + 1):
            gate.wait(pause)
            listener.sending(index)
            try:
                return self._send(client, prompt)
            except self._openai.APIStatusError as error:
                status = error.status_code
                if not is_transient(status) or _is_out_of_credit(error.body):
                    raise self._refused(status, error.response.content, prompt) from None
                problem, asked = f"answered {status}", asked_wait(error.response.headers)
                listener.refused(index)
            except self._openai.APITimeoutError:
                problem, asked = f"did not answer within {self._options.timeout:g} s", None
            except (self._openai.APIConnectionError, UnboundedAnswerError) as error:
                problem, asked = _problem(error), None
            if attempt == self._options.attempts:
                break
            listener.retried()
            pause = backoff(attempt, self._options.first_wait, self._options.longest_wait)
            if asked is not None:
                self._obey(asked, gate)
        flags = self._caller
        raise UserError(
            f"{self._named()}: {problem}, at the last of {self._options.attempts} attempts",
            remedy=f"check that the server is up and {flags.url} is right; for a slow or throttled one lower "
            f"{flags.prefix}concurrency or raise {flags.prefix}timeout or {flags.prefix}attempts; then run again",
        )

    def _send(self, client: Any, prompt: Conversation) -> Reply | None:
        body = self._post(client, prompt)
        reply = self._read(body, prompt)
        with self._lock:
            self._unusable = self._unusable + 1 if reply is None else 0
            none_is_usable = self._unusable >= _MOST_UNUSABLE
        if none_is_usable:
            raise UserError(
                f"{self._named()}: {_MOST_UNUSABLE} answers in a row were no chat completion; "
                f"the last: {self._shown(body)!r}",
                remedy=f"check {self._caller.url}, which usually ends in /v1, and that no proxy answers in the "
                "server's place",
            )
        return reply and reply.model_copy(update={"text": self._endpoint.redact_reply(reply.text)})

    def _read(self, body: bytes, prompt: Conversation) -> Reply | None:
        return read_completion(body)

    def _post(self, client: Any, prompt: Conversation) -> bytes:
        limit, sampling = self._limit, self._options.temperature
        fields = {limit: self._options.max_tokens, **({} if sampling is None else {"temperature": sampling})}
        try:
            raw = client.chat.completions.with_raw_response.create(
                model=self.model, messages=prompt.messages, **fields
            )
        except self._openai.BadRequestError as error:
            # OpenAI's newer models know the limit by another name alone, which most other servers do not know.
            if limit == _LIMIT and _NEW_LIMIT.encode() in error.response.content:
                self._limit = _NEW_LIMIT
                return self._post(client, prompt)
            raise
        return raw.http_response.content

    def _obey(self, seconds: float, gate: Gate) -> None:
        """Have all threads wait as the server asks."""
        if seconds > self._options.longest_wait:
            raise UserError(
                f"{self._named()}: asks to wait {seconds:,.0f} s, longer than the {self._options.longest_wait:g} s "
                "that a run waits at most",
                remedy="run again later",
            )
        gate.close_for(seconds)

    def _refused(self, status: int, body: bytes, prompt: Conversation) -> UserError:
        about = f" to {prompt.label}" if prompt.label and status not in (401, 403, 404) else ""
        if 300 <= status < 400:
            return UserError(
                f"{self._named()}: answered {status}, a redirect, which is not followed with a key and your texts",
                remedy=f"give the address that it leads to as {self._caller.url}, if you trust it",
            )
        return UserError(
            f"{self._named()}: answered {status}{about}: {self._shown(body)}", remedy=_remedy(status, self._caller)
        )

    def _named(self) -> str:
        return f"{self._caller.name} {self.model!r} at {self._endpoint.url}"

    def _shown(self, body: bytes) -> str:
        return self._endpoint.redact(server_message(body))[:_SHOWN]


def _import_openai(caller: Caller) -> ModuleType:
    try:
        import openai
    except ImportError:
        raise UserError(
            f"the {caller.name} 'openai' needs the package `openai`, which is not installed",
            remedy="pip install 'd2e-sft[judge]'",
        ) from None
    return openai


def _is_out_of_credit(body: object) -> bool:
    # OpenAI answers 429 both to haste, which passes, and to an empty account, which does not.
    return isinstance(body, dict) and body.get("code") == "insufficient_quota"


def _problem(error: BaseException) -> str:
    cause = error.__cause__ or error
    if isinstance(cause, UnboundedAnswerError):
        return str(cause)
    return f"cannot be reached ({type(cause).__name__}{f': {cause}' if str(cause) else ''})"


def _remedy(status: int, flags: Caller) -> str:
    remedies = {
        401: f"check the key: it is read from OPENAI_API_KEY, or from the variable that {flags.prefix}key-env names",
        402: "the account has no credit; add some, then run again",
        403: f"the key may not use this model; check {flags.model} and {flags.prefix}key-env",
        404: f"check {flags.model}, and {flags.url}, which usually ends in /v1",
        429: "the account has no credit; add some, then run again",
    }
    return remedies.get(
        status,
        f"check {flags.model}, {flags.max_tokens} and {flags.prefix}temperature against what the server accepts, and "
        "whether the sample's context is too long for the model",
    )


class _Message(BaseModel):
    content: str | None = None


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None


class _Completion(BaseModel):
    choices: list[_Choice] = Field(min_length=1)
    usage: Any = None


def read_completion(body: bytes) -> Reply | None:
    """The reply in the bytes of a chat completion; None if they are anything else."""
    try:
        completion = _Completion.model_validate_json(body)
    except ValidationError:
        return None
    choice = completion.choices[0]
    return Reply(
        text=choice.message.content or "",
        prompt_tokens=_count(completion.usage, "prompt_tokens"),
        completion_tokens=_count(completion.usage, "completion_tokens"),
        cut_off=choice.finish_reason == "length",
    )


def _count(usage: Any, name: str) -> int | None:
    """A number of tokens; None for anything odd: the reply has been paid for and must not be lost over its bill.

    None also for 0, which some proxies give for everything: it is then guessed, so that a limit on the cost holds.
    """
    value = usage.get(name) if isinstance(usage, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def server_message(body: bytes) -> str:
    """What a refusal says in words, on one line: OpenAI's form, the forms of others, else the body as it is."""
    text = body.decode("utf-8", errors="replace")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return " ".join(text.split())
    while isinstance(content, dict):
        content = next((content[key] for key in ("error", "message", "detail") if content.get(key)), str(content))
    return " ".join(str(content).split())
