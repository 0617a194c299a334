"""Around the app of `d2e serve`: its address, the requests that do not reach it, and its queue."""

import asyncio
import json
import shlex
import socket
import threading
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

import pytest

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import Format
from d2e_sft.decoding import Output, PromptPair
from d2e_sft.model.loading import LoadedModel
from d2e_sft.server import queue as queues
from d2e_sft.server.limits import BodyCheck, PageCheck, QueueLimit
from d2e_sft.server.openai import RequestError
from d2e_sft.server.queue import BatchQueue, Piece, Prompt, QueuedJob
from d2e_sft.server.start import ServeOptions, example_request, listening
from d2e_sft.util.errors import UserError
from d2e_sft.vllm.server.serve import check_address
from tests.tiny import tiny_model, tiny_tokenizer


def _ask(
    app: Any, chunks: list[bytes], announce: int | None = None, method: str = "POST", **sent_headers: str
) -> tuple[int, dict[bytes, bytes], bytes]:
    messages = [
        {"type": "http.request", "body": chunk, "more_body": i < len(chunks) - 1} for i, chunk in enumerate(chunks)
    ]
    messages.append({"type": "http.disconnect"})
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    named = {"content-type": "application/json", **sent_headers}
    headers = [(name.replace("_", "-").encode(), value.encode()) for name, value in named.items()]
    headers += [] if announce is None else [(b"content-length", str(announce).encode())]
    asyncio.run(app({"type": "http", "method": method, "headers": headers}, receive, send))
    return sent[0]["status"], dict(sent[0]["headers"]), b"".join(message["body"] for message in sent[1:])


async def _echo(scope: Any, receive: Any, send: Any) -> None:
    body, more = b"", True
    while more:
        message = await receive()
        body += message["body"]
        more = message["more_body"]
    assert (await receive())["type"] == "http.disconnect", "what comes after the body is passed on"
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


@pytest.mark.parametrize("chunks", [[b'"' + b"x" * 8 + b'"'], [b'{"a"', b"", b": [1]}"]])
def test_a_body_within_the_limit_goes_on_as_it_came(chunks: list[bytes]) -> None:
    assert _ask(BodyCheck(_echo, 10), chunks) == (200, {}, b"".join(chunks))


@pytest.mark.parametrize(
    ("chunks", "announce"), [([b"x"], 11), ([b"x" * 11], None), ([b"x" * 6] * 1000, None), ([b"x" * 11], 5)]
)
def test_a_larger_body_is_answered_with_413_in_openais_form(chunks: list[bytes], announce: int | None) -> None:
    status, headers, body = _ask(BodyCheck(_echo, 10), chunks, announce)
    assert status == 413
    assert headers[b"connection"] == b"close"
    assert json.loads(body)["error"]["code"] == 413


def test_a_client_that_leaves_in_the_middle_of_its_body_gets_no_answer() -> None:
    messages = [{"type": "http.request", "body": b"x", "more_body": True}, {"type": "http.disconnect"}]
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0)

    async def run(*_: Any) -> None:
        sent.append("the app was called, or something was sent")

    asyncio.run(BodyCheck(run, 10)({"type": "http", "headers": []}, receive, run))
    assert not sent


def _answering(status: int, body: bytes) -> Any:
    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": [(b"x", b"y")]})
        await send({"type": "http.response.body", "body": body[:5], "more_body": True})
        await send({"type": "http.response.body", "body": body[5:]})

    return answer


@pytest.mark.parametrize(
    ("body", "said"), [(b'{"error": {"message": "queue of 12 is full", "code": 503}}', "queue of 12 is full"),
                       (b"overloaded", "overloaded"), (b"", "the queue is full")],
)  # fmt: skip
def test_a_full_queue_is_429_and_says_when_to_come_back(body: bytes, said: str) -> None:
    status, headers, answered = _ask(QueueLimit(_answering(503, body)), [b""])
    assert (status, headers[b"retry-after"], headers[b"content-length"]) == (429, b"1", str(len(answered)).encode())
    error = json.loads(answered)["error"]
    assert (error["message"], error["code"]) == (said, 429)


@pytest.mark.parametrize(("status", "method"), [(200, "POST"), (400, "POST"), (503, "GET")])
def test_other_answers_and_the_state_of_health_go_on_as_they_are(status: int, method: str) -> None:
    app = QueueLimit(_answering(status, b"as it is"))
    assert _ask(app, [b""], method=method) == (status, {b"x": b"y"}, b"as it is")


_ROWS = (  # a body, its type, and the status and message of the answer
    (rb'{"a": ["\ud800"]}', "application/json", 400, "lone surrogate"),
    (rb'{"\udc00": 1}', "application/json", 400, "lone surrogate"),
    (b'{"a": "\xed\xa0\x80"}', "application/json", 400, "utf-8"),
    (b'{"a": {"b": 1, "b": 1}}', "application/json", 400, "'b' is given twice"),
    (b'{"a": -Infinity}', "application/json", 400, "-Infinity is not a JSON value"),
    (b"[" * 100_000, "application/json", 400, "recursion"),
    (b"{", "application/json", 400, "not valid JSON"),
    (b"{}", "text/plain", 415, "'text/plain'"),
    (b"{}", "", 415, "expected application/json"),
    (b"{}", "application/json-but-not", 415, "expected application/json"),
    (rb'{"a": "\ud83d\ude00"}', "Application/JSON; charset=utf-8", 200, "ud83d"),
    (b"", "text/plain", 200, ""),
)  # fmt: skip


@pytest.mark.parametrize(("body", "kind", "status", "said"), _ROWS)
def test_a_body_is_json_that_every_reader_understands_alike(body: bytes, kind: str, status: int, said: str) -> None:
    found, _, answer = _ask(BodyCheck(_echo, 1_000_000), [body], content_type=kind)
    assert (found, said in answer.decode()) == (status, True), answer


_LOCAL, _OPEN = ServeOptions(), ServeOptions(host="0.0.0.0")
_NAMED = ServeOptions(host="192.168.1.5", allow_hosts=("d2e.example", "https://B.example:443"))
_PAGE = ServeOptions(allow_origins=("https://app.example",))
_ANY = ServeOptions(allow_hosts=("*",), allow_origins=("*",))
_PASSES: list[tuple[ServeOptions, dict[str, str]]] = [
    (_LOCAL, {}),  # HTTP/1.0, as of a balancer
    *((_LOCAL, {"host": host}) for host in ("127.0.0.1:8000", "LOCALHOST:9", "[::1]:8000", "127.0.0.2")),
    *((_OPEN, {"host": host}) for host in ("10.1.2.3:8000", "[fd00::1]", "localhost", socket.gethostname())),
    *((_NAMED, {"host": host}) for host in ("192.168.1.5", "d2e.example:8000", "b.example")),
    (_LOCAL, {"host": "localhost:8000", "origin": "http://localhost:8000"}),
    (_NAMED, {"host": "d2e.example", "origin": "https://d2e.example"}),
    (_NAMED, {"host": "d2e.example:443", "origin": "https://d2e.example"}),
    (_NAMED, {"host": "d2e.example:80", "origin": "http://d2e.example"}),
    (_PAGE, {"host": "localhost:8000", "origin": "https://app.example"}),
    (_ANY, {"host": "anything", "origin": "null"}),
]
_REFUSED: list[tuple[ServeOptions, dict[str, str]]] = [
    *((_LOCAL, {"host": host}) for host in ("evil.example", "127.0.0.1.evil.example", "10.1.2.3", "", "[::1", "a@b")),
    *((_OPEN, {"host": host}) for host in ("evil.example", "1.2.3.4.evil.example")),
    (_NAMED, {"host": "192.168.1.6"}),
    (_NAMED, {"host": "d2e.example:443", "origin": "http://d2e.example"}),
    *(
        (_LOCAL, {"host": "localhost:8000", "origin": page})
        for page in ("null", "http://localhost:3000", "", "file://")
    ),
    (_LOCAL, {"host": "localhost", "origin": "http://evil.example"}),
    (_PAGE, {"host": "localhost", "origin": "https://app.example.evil.example"}),
    (_PAGE, {"host": "localhost", "origin": "http://app.example"}),
]


@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_only_pages_and_names_of_this_server_or_allowed_ones_may_ask(kind: str) -> None:
    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def passed(*_: Any) -> None:
        sent.append({"type": "passed"})

    for cases, expected in (
        (_PASSES, "passed"),
        (_REFUSED, f"{kind}.{'response.start' * (kind == 'http') or 'close'}"),
    ):
        for options, given in cases:
            sent: list[dict[str, Any]] = []
            headers = [(name.encode(), value.encode()) for name, value in given.items()]
            asyncio.run(PageCheck(passed, options)({"type": kind, "headers": headers}, passed, send))
            assert (sent[0]["type"], sent[0].get("status", 403)) == (expected, 403), (options, given)


def prompt(**options: Any) -> Prompt:
    decoding = DecodingConfig(**{"alpha": 0.5, "max_new_tokens": 4, **options})
    alpha = decoding.alpha if decoding.decoder == "d2e" else None
    return Prompt(PromptPair([5, 6, 7], [5, 7], alpha=alpha), decoding, (1,))


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The longest answers of the prompts of each batch."""
    found: list[list[int]] = []
    real = BatchQueue._decode

    def noted(self: BatchQueue, jobs: list[Any]) -> None:
        found.append([job.prompt.decoding.max_new_tokens for job in jobs])
        real(self, jobs)

    monkeypatch.setattr(BatchQueue, "_decode", noted)
    return found


async def whole(queue: BatchQueue, *prompts: Prompt) -> list[int]:
    """The number of tokens of each answer."""
    tokens = [0] * len(prompts)
    async for piece in queue.answers(prompts):
        tokens[piece.index] = piece.tokens
    return tokens


def test_prompts_of_one_decoder_are_one_batch(loaded: LoadedModel, batches: list[list[int]]) -> None:
    async def asked() -> list[int]:
        return await whole(
            BatchQueue(loaded, 9),
            prompt(max_new_tokens=2),
            prompt(max_new_tokens=3, decoder="cad"),
            prompt(max_new_tokens=4, temperature=1.0),
            prompt(max_new_tokens=5, alpha=0.1),
            prompt(max_new_tokens=6, temperature=1.0),
            prompt(max_new_tokens=7, decoder="cad"),
        )

    assert asyncio.run(asked()) == [2, 3, 4, 5, 6, 7]
    assert batches == [[2, 5], [3, 7], [4], [6]]


@pytest.fixture
def held(loaded: LoadedModel) -> Iterator[BatchQueue]:
    """A queue with room for two prompts, whose thread waits until the test ends."""
    release, queue = threading.Event(), BatchQueue(loaded, 2)
    with queue._entered([release.wait]):
        while queue._waiting:
            pass
        yield queue
        release.set()


def test_a_full_queue_refuses_with_429_and_too_many_prompts_of_a_request_with_400(held: BatchQueue) -> None:
    async def full() -> None:
        waiting = [asyncio.create_task(whole(held, prompt())) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(RequestError, match="2 prompts are waiting") as refused:
            await whole(held, prompt())
        assert refused.value.status == 429
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    asyncio.run(full())
    held.check_room(2)  # they no longer wait
    with pytest.raises(RequestError, match="3 prompts in a request; expected at most 2") as refused:
        asyncio.run(whole(held, *[prompt()] * 3))
    assert refused.value.status == 400


@pytest.mark.parametrize("place", ["generate", "budget_of"])
def test_an_error_of_a_batch_reaches_its_requests_and_the_next_batch_is_decoded(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise MemoryError("no room")

    queue = BatchQueue(loaded, 9)
    with monkeypatch.context() as patched:
        patched.setattr(queues, place, fail)
        with pytest.raises(RequestError, match="MemoryError: no room"):
            asyncio.run(whole(queue, prompt(), prompt()))
    assert "MemoryError" in capsys.readouterr().err
    assert asyncio.run(whole(queue, prompt())) == [4]


def test_the_first_forwards_are_those_of_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = LoadedModel(tiny_model("llama", seed=5).eval(), tiny_tokenizer())

    def fail(*_: Any, **__: Any) -> Any:
        raise MemoryError("no room for a first forward")

    monkeypatch.setattr("d2e_sft.model.packing_support.choose_layout", fail)
    with pytest.raises(MemoryError, match="first forward"):
        BatchQueue(fresh, 9)


class Texts:
    """Decodes a token as one of the given texts."""

    def __init__(self, texts: list[str]) -> None:
        self._texts = texts

    def decode(self, tokens: list[int], **_: Any) -> str:
        return "".join(self._texts[token] for token in tokens)


STOP = "\n\nQuestion:"
ANSWERS = [  # the decoded text, what is sent of it, and why it ends
    (f"Paris{STOP} Who?", "Paris", "stop"),
    (STOP, "", "stop"),
    ("Paris\n\nQuestions", "Paris\n\nQuestions", "stop"),
    ("Oui", "Oui", "stop"),
]


@pytest.mark.parametrize(("text", "sent", "finish"), ANSWERS)
def test_nothing_of_a_stop_text_is_sent_wherever_the_tokens_part(text: str, sent: str, finish: str) -> None:
    cuts = [
        [text[:place], text[place:middle], text[middle:]] for middle in range(1, len(text)) for place in (1, middle)
    ]
    for texts in [list(text), [text], *cuts]:
        pieces: list[Piece] = []
        asked = Prompt(PromptPair([5], None), DecodingConfig(max_new_tokens=99), (1,), (STOP, "never said"))
        job, output = QueuedJob(asked, 0, pieces.append), Output(0, Texts(texts))
        for token in range(len(texts)):
            output.tokens.append(token)
            if not job.ended:
                job.take(output)
        output.ended = True
        if not job.ended:
            job.take(output)
        assert "".join(piece.text for piece in pieces) == sent, texts
        assert [piece.finish for piece in pieces if piece.finish] == [finish]


@pytest.mark.parametrize(
    ("host", "remedy"), [("127.0.0.1", "another --port"), ("192.0.2.1", "--host"), ("no.such.invalid", "--host")]
)
def test_an_address_that_cannot_be_listened_on_says_which_part_to_change(host: str, remedy: str) -> None:
    with listening("127.0.0.1", 0) as taken:
        taken.listen()
        with pytest.raises(UserError) as refused:
            listening(host, taken.getsockname()[1])
    assert remedy in str(refused.value.remedy)


@pytest.mark.parametrize(("name", "fmt"), [("default", "nli"), ("default", "mcq"), ("neutral", "qa")])
def test_the_example_is_a_command_in_the_words_of_training(name: str, fmt: Format) -> None:
    options = ServeOptions(prompt_set=name, format=fmt, is_worded=True, api_key="secret")
    command = example_request("runs/it's", options, "http://127.0.0.1:8000/v1").partition("\ncurl ")[2]
    url, body = (shlex.split(command)[place] for place in (1, -1))
    asked = json.loads(body)
    assert (url, asked["model"]) == ("http://127.0.0.1:8000/v1/chat/completions", "runs/it's")
    [user] = asked["messages"]  # the server adds the system message
    assert options.system_of(load_prompt_set(name), fmt) == load_prompt_set(name).zero_shot[fmt].system
    assert asked["context"] not in user["content"]
    assert "secret" not in command
    assert example_request("m", ServeOptions(), "http://127.0.0.1:8000/v1") == "", "the wording is unknown"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"api_key": ["S"]}, "got --api-key after MODEL"),
        ({"host": "0.0.0.0"}, "got --host after MODEL"),
        ({"port": 9000}, "got --port after MODEL"),
        ({"allowed_origins": ["https://app.example"]}, "got --allowed-origins after MODEL"),
        ({"api_key": "S", "host": "0.0.0.0"}, "got --host and --api-key after MODEL"),
        ({}, None),
        ({"api_key": []}, None),
    ],
)
def test_an_address_or_a_key_after_the_model_is_refused(changed: dict[str, Any], said: str | None) -> None:
    options = ServeOptions(api_key="the-servers-own")
    arguments = Namespace(
        **{"host": options.host, "port": options.port, "api_key": None, "allowed_origins": [], **changed}
    )
    if said is None:
        check_address(arguments, options)
        return
    with pytest.raises(UserError, match=said) as refused:
        check_address(arguments, options)
    assert "before MODEL" in str(refused.value.remedy)
