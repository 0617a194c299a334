"""Any OpenAI-compatible endpoint, with several requests at once, whose answers are bounded in time and size.

The `openai` client builds, sends and retries the requests. Replies are read from their bytes, since the client accepts
whatever a server sends with status 200, such as a web page. The timeout of an HTTP client is that between two pieces
of an answer. A head or body of one byte a second never exceeds it, and an endless body fills the memory. Redirects are
not followed, since a key and texts are meant for one address only.
"""

import json
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as LateError
from queue import Empty, SimpleQueue
from types import ModuleType
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, Field, ValidationError
from tqdm import tqdm

from d2e_sft.judge.judge import JudgePrompt, Reply, Usage
from d2e_sft.judge.options import JUDGE, Caller, EndpointOptions, find_endpoint
from d2e_sft.util.errors import UserError

LARGEST = 16 << 20  # bytes of an answer; a reply of 100,000 tokens has less than one of them
# A request may take this many timeouts in all, because some servers send blanks while a model thinks.
PATIENCE = 4
_MOST_UNUSABLE = 5  # unusable replies in a row that show that this is not a chat endpoint
_GRACE = 3.0  # seconds for open requests after Ctrl-C
_LIMIT, _NEW_LIMIT = "max_tokens", "max_completion_tokens"
T = TypeVar("T")


class OpenAIBackend:
    """Sends prompts to `/chat/completions`; `caller` names the caller and its options in messages.

    Without `asking` it only says what a reply depends on, which needs neither a key nor the client.
    """

    counts_tokens = False

    def __init__(self, options: EndpointOptions, caller: Caller = JUDGE, *, asking: bool = True) -> None:
        assert options.model is not None
        self.model = options.model
        self._options = options
        self._caller = caller
        self._endpoint = find_endpoint(options, caller, asking=asking)
        if not asking:
            return
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
        """Everything that a reply depends on besides its prompt, as JSON; part of the reply's key in the cache."""
        return {
            "backend": "openai",
            "base_url": self._endpoint.url,
            "model": self.model,
            "max_tokens": self._options.max_tokens,
            "temperature": self._options.temperature,
        }

    def prompt_tokens(self, prompt: JudgePrompt) -> int:
        """Return the tokens of a prompt; counted if `counts_tokens`, else guessed from the length of the text."""
        return prompt.guessed_tokens

    def answers(
        self, prompts: Sequence[Any], usage: Usage, keep: Callable[[Any, Reply], None] = lambda prompt, reply: None
    ) -> Generator[tuple[int, Reply | None]]:
        """Yield the index of each prompt and its reply, as they arrive; None for one that is no chat completion.

        A thread sends a request and keeps its reply by `keep`. The next request is sent when the caller asks for
        the next reply, so at most `concurrency` replies are on their way. After an error or Ctrl-C the open requests,
        which are paid for, are waited for. Prompts have `messages`, `label`, and `guessed_tokens` if there is a price.
        """
        timeout = grace = self._options.timeout
        http = _BoundedClient(timeout, usage)
        client = self._openai.OpenAI(
            api_key=self._endpoint.key,
            base_url=self._endpoint.url,
            timeout=timeout,
            max_retries=self._options.attempts - 1,
            http_client=http,
        )
        received: SimpleQueue[tuple[int, Reply | BaseException | None]] = SimpleQueue()

        def ask(index: int) -> None:
            http.thread.prompt = prompt = prompts[index]
            try:
                reply = self._send(client, prompt)
                if reply is not None:
                    keep(prompt, reply)
                received.put((index, reply))
            except BaseException as error:
                http.stopped.set()  # at once, before other threads send
                received.put((index, error.reason if isinstance(error, _StoppedError) else error))

        todo, threads, left = deque(range(len(prompts))), list[threading.Thread](), 0
        error: BaseException | None = None
        try:
            while True:
                while todo and left < self._options.concurrency and not http.stopped.is_set():
                    threads = [thread for thread in threads if thread.is_alive()]
                    # Daemons, so that a stalled server does not block Ctrl-C.
                    threads.append(threading.Thread(target=ask, args=(todo.popleft(),), daemon=True))
                    threads[-1].start()
                    left += 1
                if not left:
                    break
                index, reply = received.get(timeout=None if error is None else timeout)
                left -= 1
                if not isinstance(reply, BaseException):
                    yield index, reply
                elif error is None:
                    error = reply
        except Empty:
            pass  # the open requests take too long
        except KeyboardInterrupt:
            grace = min(_GRACE, timeout)
            tqdm.write(f"stopping: waiting at most {grace:g} s for open requests", sys.stderr)
            raise
        finally:
            http.stopped.set()
            until = time.monotonic() + grace
            for thread in threads if error is None else ():
                thread.join(max(0.0, until - time.monotonic()))
            client.close()
        if error is not None:
            raise error

    def _send(self, client: Any, prompt: Any) -> Reply | None:
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

    def _read(self, body: bytes, prompt: Any) -> Reply | None:
        """Return the reply in the bytes of a chat completion; None if they are anything else."""
        try:
            completion = _Completion.model_validate_json(body)
        except ValidationError:
            return None
        choice = completion.choices[0]
        # None, so that it is guessed, for anything odd and for 0, which some proxies send.
        counts = completion.usage if isinstance(completion.usage, dict) else {}
        names = ("prompt_tokens", "completion_tokens")
        tokens = {name: counts[name] for name in names if type(counts.get(name)) is int and counts[name] > 0}
        return Reply(text=choice.message.content or "", cut_off=choice.finish_reason == "length", **tokens)

    def _post(self, client: Any, prompt: Any) -> bytes:
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

    def _refused(self, status: int, body: bytes, prompt: Any) -> UserError:
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
        subject = f" to {prompt.label}" if prompt.label and status not in remedies else ""
        if _is_without_credit(status, body):
            remedy = "the account has no credit; add some, then run again"
        elif status == 429 or status >= 500:
            remedy = f"run again later, lower {flags.prefix}concurrency, or raise {flags.prefix}attempts"
        else:
            remedy = remedies.get(
                status,
                f"check {flags.model}, {flags.max_tokens} and {flags.prefix}temperature against what the server "
                "accepts, and whether the sample's context is too long for the model",
            )
        return UserError(f"{self._named()}: answered {status}{subject}: {self._shown(body)}", remedy)

    def _unanswered(self, error: Exception) -> UserError:
        cause = error.__cause__ or error
        if isinstance(error, self._openai.APITimeoutError):
            problem = f"did not answer within {self._options.timeout:g} s"
        elif isinstance(cause, _UnboundedAnswerError):
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
        return self._endpoint.redact(_server_message(body))[:300]


class _UnboundedAnswerError(httpx.RequestError):
    """An answer that is too large, too slow, or compressed; the client sends the request again."""


class _StoppedError(BaseException):
    """Ends a request before it is sent; not an Exception, which the client would retry."""

    def __init__(self, reason: UserError | None = None) -> None:
        super().__init__()
        self.reason = reason  # None: another request has failed


class _BoundedClient(httpx.Client):
    """Reads answers up to a size and a time; sends nothing once it is stopped, or beyond the limit of the cost.

    `thread.prompt` is that of the thread that sends.
    """

    def __init__(self, timeout: float, usage: Usage) -> None:
        super().__init__(headers={"Accept-Encoding": "identity"}, limits=httpx.Limits())
        self.stopped, self.thread = threading.Event(), threading.local()
        self._patience, self._usage = PATIENCE * timeout, usage

    def send(self, request: httpx.Request, *, stream: bool = False, **options: Any) -> httpx.Response:
        """Send a request and return the whole answer."""
        if self.stopped.is_set():
            raise _StoppedError
        prompt, until = self.thread.prompt, time.monotonic() + self._patience
        try:
            self._usage.sending(prompt, retry=request.headers.get("x-stainless-retry-count", "0") != "0")
        except UserError as error:
            raise _StoppedError(error) from None
        plain_send = super().send

        def fetch() -> tuple[httpx.Response, bytes]:
            response = plain_send(request, stream=True, **{**options, "follow_redirects": False})
            try:
                return response, _content(response, until)
            finally:
                response.close()

        response, content = _within(self._patience, fetch)
        if response.status_code >= 400:
            self._usage.refused(prompt)
        # As bytes, since a server may send any header; without those about how the body was transferred.
        left_out = (b"transfer-encoding", b"content-length")
        headers = [pair for pair in response.headers.raw if pair[0].lower() not in left_out]
        answer = httpx.Response(response.status_code, headers=headers, content=content, request=request)
        if _is_without_credit(response.status_code, content):
            answer.headers["x-should-retry"] = "false"  # read by the openai client
        return answer


def _within(seconds: float, work: Callable[[], T]) -> T:
    """Return the result of work in a thread of its own; _UnboundedAnswerError if it takes longer.

    Nothing ends the reading of a head or the look-up of a name from outside. A daemon thread that is late is left
    behind, and its connection is closed with the client.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        return future.result(seconds)
    except LateError:
        raise _UnboundedAnswerError(f"sends its answer too slowly, not all of it in {seconds:g} s") from None


def _content(response: httpx.Response, until: float) -> bytes:
    # A small compressed body can unpack to very much, and none was asked for.
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise _UnboundedAnswerError(f"sends a compressed answer ({response.headers['Content-Encoding'][:40]})")
    content = bytearray()
    for piece in response.iter_raw():
        content += piece
        if len(content) > LARGEST:
            raise _UnboundedAnswerError(f"sends more than {LARGEST >> 20} MiB in one answer")
        if time.monotonic() > until:  # nobody waits for it any more
            raise _UnboundedAnswerError("sends its answer too slowly")
    return bytes(content)


def _is_without_credit(status: int, body: bytes) -> bool:
    """Tell an account without credit from throttling, for which OpenAI sends the same status."""
    return status == 402 or (status == 429 and b"insufficient_quota" in body)


class _Message(BaseModel):
    content: str | None = None


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None


class _Completion(BaseModel):
    choices: list[_Choice] = Field(min_length=1)
    usage: Any = None


def _server_message(body: bytes) -> str:
    """Return what a refusal says, on one line: OpenAI's form, the forms of other servers, or the whole body."""
    text = body.decode("utf-8", errors="replace")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return " ".join(text.split())
    while isinstance(content, dict):
        content = next((content[key] for key in ("error", "message", "detail") if content.get(key)), str(content))
    return " ".join(str(content).split())
