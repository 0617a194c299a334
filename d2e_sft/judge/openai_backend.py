"""Any OpenAI-compatible endpoint, with several requests at once.

The `openai` client builds, sends and retries the requests. Replies are read from their bytes, since the client accepts
whatever a server sends with status 200, such as a web page.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from multiprocessing import TimeoutError as OverdueError
from multiprocessing.pool import ThreadPool
from types import ModuleType
from typing import Any

from tqdm import tqdm

from d2e_sft.judge.http_client import (
    Requests,
    StopError,
    UnboundedAnswerError,
    bounded_client,
    is_without_credit,
    read_completion,
    server_message,
)
from d2e_sft.judge.messages import Conversation, Listener, Prompt, Reply
from d2e_sft.judge.options import JUDGE, Caller, EndpointOptions, find_endpoint
from d2e_sft.util.errors import UserError

_MOST_UNUSABLE = 5  # unusable replies in a row that show that this is not a chat endpoint
_GRACE = 3.0  # seconds for open requests after Ctrl-C
_LIMIT, _NEW_LIMIT = "max_tokens", "max_completion_tokens"


class OpenAIBackend:
    """Sends prompts to `/chat/completions`.

    Args:
        options: the endpoint and how it is asked.
        caller: names the caller and its options in messages.

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
        try:
            import openai
        except ImportError:
            raise UserError(
                f"the {caller.name} 'openai' needs the package `openai`, which is not installed",
                remedy="pip install 'd2e-sft[judge]'",
            ) from None
        self._openai: ModuleType = openai
        self._unusable = 0  # unusable replies in a row
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
        return prompt.guessed_tokens

    def answer(self, prompts: Sequence[Conversation], listener: Listener) -> None:
        endpoint, timeout, attempts = self._endpoint, self._options.timeout, self._options.attempts
        requests = Requests(listener)
        client = self._openai.OpenAI(
            api_key=endpoint.key,
            base_url=endpoint.url,
            timeout=timeout,
            max_retries=attempts - 1,
            http_client=bounded_client(self._openai, timeout, requests),
        )

        def ask(index: int) -> None:
            requests.place.index = index
            try:
                listener.received(index, self._send(client, prompts[index]))
            except StopError as stopped:
                requests.stopped.set()
                if stopped.error is not None:
                    raise stopped.error from None
            except BaseException:
                requests.stopped.set()  # at once, before other threads take their next prompt
                raise

        # Its threads are daemons, unlike those of concurrent.futures: a stalled server does not block Ctrl-C.
        threads = max(1, min(self._options.concurrency, len(prompts)))
        pool, grace = ThreadPool(threads), timeout
        replies = pool.imap_unordered(ask, range(len(prompts)))
        try:
            for _ in prompts:
                replies.next()
        except KeyboardInterrupt:
            grace = min(_GRACE, timeout)
            tqdm.write(f"stopping: waiting at most {grace:g} s for open requests", sys.stderr)
            raise
        finally:
            requests.stopped.set()
            _wait(replies, grace)
            pool.terminate()
            client.close()

    def _send(self, client: Any, prompt: Conversation) -> Reply | None:
        try:
            body = self._post(client, prompt)
        except self._openai.APIStatusError as error:
            raise self._refused(error.status_code, error.response.content, prompt) from None
        except self._openai.APIConnectionError as error:
            raise self._unanswered(error) from None
        reply = self._read(body, prompt)
        with self._lock:
            self._unusable = self._unusable + 1 if reply is None else 0
            unusable = self._unusable
        if unusable >= _MOST_UNUSABLE:
            raise UserError(
                f"{self._named()}: {_MOST_UNUSABLE} answers in a row were no chat completion; "
                f"the last: {self._shown(body)!r}",
                remedy=f"check {self._caller.url}, which usually ends in /v1, and that no proxy answers instead",
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
            # OpenAI's newer models only accept another name of the limit, which most other servers do not know.
            if limit == _LIMIT and _NEW_LIMIT.encode() in error.response.content:
                self._limit = _NEW_LIMIT
                return self._post(client, prompt)
            raise
        return raw.http_response.content

    def _refused(self, status: int, body: bytes, prompt: Conversation) -> UserError:
        flags = self._caller
        if 300 <= status < 400:
            return UserError(
                f"{self._named()}: answered {status}, a redirect, which is not followed with a key and your texts",
                remedy=f"give the address that it leads to as {flags.url}, if you trust it",
            )
        remedies = {
            401: f"check the key in OPENAI_API_KEY, or in the variable that {flags.prefix}key-env names",
            403: f"the key may not use this model; check {flags.model} and {flags.prefix}key-env",
            404: f"check {flags.model}, and {flags.url}, which usually ends in /v1",
        }
        about = f" to {prompt.label}" if prompt.label and status not in remedies else ""
        if is_without_credit(status, body):
            remedy = "the account has no credit; add some, then run again"
        elif status == 429 or status >= 500:
            remedy = f"run again later, lower {flags.prefix}concurrency, or raise {flags.prefix}attempts"
        else:
            remedy = remedies.get(
                status,
                f"check {flags.model}, {flags.max_tokens} and {flags.prefix}temperature against what the server "
                "accepts, and whether the sample's context is too long for the model",
            )
        return UserError(f"{self._named()}: answered {status}{about}: {self._shown(body)}", remedy)

    def _unanswered(self, error: Exception) -> UserError:
        cause = error.__cause__ or error
        if isinstance(error, self._openai.APITimeoutError):
            problem = f"did not answer within {self._options.timeout:g} s"
        elif isinstance(cause, UnboundedAnswerError):
            problem = str(cause)
        else:
            problem = f"cannot be reached ({type(cause).__name__}{f': {cause}' if str(cause) else ''})"
        flags = self._caller
        return UserError(
            f"{self._named()}: {problem}, in the last of {self._options.attempts} attempts",
            remedy=f"check that the server is up and {flags.url} is right; for a slow server lower "
            f"{flags.prefix}concurrency or raise {flags.prefix}timeout or {flags.prefix}attempts; then run again",
        )

    def _named(self) -> str:
        return f"{self._caller.name} {self.model!r} at {self._endpoint.url}"

    def _shown(self, body: bytes) -> str:
        return self._endpoint.redact(server_message(body))[:300]


def _wait(replies: Any, seconds: float) -> None:
    """Wait for open requests, which are paid for, until all are answered or the time is over."""
    until = time.monotonic() + seconds
    while True:
        try:
            replies.next(max(0.0, until - time.monotonic()))
        except (StopIteration, OverdueError):
            return
        except UserError:
            continue  # another request failed, too
