"""`d2e serve`, asked by the `openai` client."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: make test-vllm")

import httpx
from openai import APIStatusError, AuthenticationError, BadRequestError, OpenAI

from d2e_sft.decoding import DecodingConfig, generate_debiased
from d2e_sft.model.loading import BUILTIN

KEY, LIMIT = "a-key-of-the-test", 20_000
SYSTEM = {"role": "system", "content": "Answer shortly."}
CONTEXT = "Rain fell for nine days on the hills. Then the river rose, and the old stone bridge broke."
QUESTION = "Question: What broke after the river rose?"
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of a server with 8 rows and room for 12 requests."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = Path(tempfile.mkdtemp()) / "server.log"
    command = [
        sys.executable, "-m", "d2e_sft.cli", "serve", "--port", str(port), "--max-body-bytes", str(LIMIT), BUILTIN,
        "--dtype", "float32", "--max-model-len", "1024", "--enforce-eager",
        "--max-num-seqs", "8", "--max-num-queued-reqs", "12",
    ]  # fmt: skip
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, "D2E_API_KEY": KEY})
    try:
        address = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 400
        while True:
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            try:
                if httpx.get(f"{address}/health").status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(1)
        yield address
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()


@pytest.fixture(scope="module")
def client(server: str) -> OpenAI:
    return OpenAI(base_url=f"{server}/v1", api_key=KEY, max_retries=0, timeout=300)


def _ask(client: OpenAI, *, question: str = QUESTION, extra: dict[str, Any] | None = None, **options: Any) -> Any:
    messages: list[Any] = [SYSTEM, {"role": "user", "content": question}]
    body = {"context": CONTEXT, "alpha": 0.5} if extra is None else extra
    given: dict[str, Any] = {"temperature": 0, "max_tokens": 24, **options}
    return client.chat.completions.create(model=BUILTIN, messages=messages, extra_body=body, **given)


def _prompt(tokenizer: Any, user: str) -> list[int]:
    text = tokenizer.apply_chat_template(
        [SYSTEM, {"role": "user", "content": user}], tokenize=False, add_generation_prompt=True
    )
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def _expected(loaded: Any, original: str, imagined: str | None, alpha: float, tokens: int = 24) -> str:
    answers = generate_debiased(
        loaded.model,
        [_prompt(loaded.tokenizer, original)],
        None if imagined is None else [_prompt(loaded.tokenizer, imagined)],
        DecodingConfig(alpha=alpha, max_new_tokens=tokens),
        stop_ids=[2],
    )
    return str(loaded.tokenizer.decode(answers[0], skip_special_tokens=True))


@pytest.mark.parametrize("alpha", [0.3, 0.9])
def test_a_context_is_debiased_as_in_process(client: OpenAI, in_process: Any, alpha: float) -> None:
    answer = _ask(client, extra={"context": CONTEXT, "alpha": alpha})
    original = f"Context: {CONTEXT}\n{QUESTION}"
    assert answer.choices[0].message.content == _expected(in_process, original, QUESTION, alpha)
    assert answer.usage.prompt_tokens == len(_prompt(in_process.tokenizer, original))


def test_a_stream_is_one_answer_in_pieces_with_its_usage(client: OpenAI) -> None:
    whole = _ask(client)
    chunks = list(_ask(client, stream=True, stream_options={"include_usage": True}))
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == whole.choices[0].message.content
    assert sum(bool(piece) for piece in pieces) > 3
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason
    assert chunks[-1].usage == whole.usage


def test_a_request_without_context_is_vllms_own(client: OpenAI, in_process: Any) -> None:
    answer = _ask(client, extra={})
    assert answer.choices[0].message.content == _expected(in_process, QUESTION, None, 0.0)
    several = _ask(client, extra={}, n=2, temperature=1.0, logprobs=True)
    assert len(several.choices) == 2
    completion = client.completions.create(model=BUILTIN, prompt="The river", max_tokens=4, temperature=0)
    assert completion.choices[0].text
    assert [model.id for model in client.models.list()] == [BUILTIN]


def test_an_empty_context_is_decoded_plainly_and_says_so(client: OpenAI, in_process: Any) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=BUILTIN,
        messages=[SYSTEM, {"role": "user", "content": QUESTION}],  # type: ignore[list-item]
        temperature=0,
        max_tokens=24,
        extra_body={"context": " \n"},
    )
    assert raw.headers["x-d2e-decoding"] == "plain (empty context)"
    assert raw.parse().choices[0].message.content == _expected(in_process, QUESTION, None, 0.0)


def test_stop_strings_end_an_answer_as_in_vllm(client: OpenAI) -> None:
    text = _ask(client).choices[0].message.content
    stop = text[8:11]
    for stream in (False, True):
        if stream:
            chunks = [c for c in _ask(client, stop=[stop], stream=True) if c.choices]
            cut = "".join(c.choices[0].delta.content or "" for c in chunks)
            reason = chunks[-1].choices[0].finish_reason
        else:
            choice = _ask(client, stop=[stop]).choices[0]
            cut, reason = choice.message.content, choice.finish_reason
        assert (cut, reason) == (text[: text.index(stop)], "stop")


def test_equal_seeds_draw_equal_answers_whatever_else_the_engine_does(client: OpenAI) -> None:
    alone = _ask(client, temperature=1.0, top_p=0.95, seed=7).choices[0].message.content
    with ThreadPoolExecutor(5) as pool:
        busy = pool.map(lambda seed: _ask(client, temperature=1.0, top_p=0.95, seed=seed), [7, 8, 9, 7, 10])
        texts = [answer.choices[0].message.content for answer in busy]
    assert texts[0] == texts[3] == alone
    assert len(set(texts)) == 4


@pytest.mark.parametrize(
    ("extra", "options", "said"),
    [
        ({"context": CONTEXT, "alpha": -0.5}, {}, "alpha"),
        ({"context": CONTEXT, "alpha": "much"}, {}, "alpha"),
        ({"context": CONTEXT, "alpha": True}, {}, "alpha"),
        ({"context": 5}, {}, "context"),
        ({"alpha": 0.5}, {}, "context"),
        ({"context": CONTEXT, "format": "essay"}, {}, "format"),
        ({"context": CONTEXT, "use_beam_search": True}, {"n": 2}, "beam"),
        ({"context": CONTEXT}, {"n": 2}, "n=2"),
        ({"context": CONTEXT}, {"logprobs": True}, "logprobs"),
        ({"context": CONTEXT}, {"presence_penalty": 1.0}, "presence_penalty"),
        ({"context": CONTEXT}, {"response_format": {"type": "json_object"}}, "structured_outputs"),
        ({"context": "rain " * 1500}, {}, "1024"),
    ],
)
def test_what_cannot_be_debiased_is_a_clear_400(
    client: OpenAI, extra: dict[str, Any], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(BadRequestError) as refused:
        _ask(client, extra=extra, **options)
    assert said in json.dumps(refused.value.body)
    assert refused.value.body["message"]  # type: ignore[index]


def test_without_the_key_nothing_is_answered(server: str) -> None:
    stranger = OpenAI(base_url=f"{server}/v1", api_key="another", max_retries=0)
    with pytest.raises(AuthenticationError):
        _ask(stranger)
    assert httpx.post(f"{server}/v1/chat/completions", content=b"x" * (LIMIT * 4)).status_code == 401
    assert httpx.get(f"{server}/health").status_code == 200


def test_a_body_beyond_the_limit_is_refused_with_and_without_its_length(server: str) -> None:
    url, headers = f"{server}/v1/chat/completions", {"Authorization": f"Bearer {KEY}"}
    announced = httpx.post(url, headers=headers, content=b"x" * (LIMIT + 1))
    chunked = httpx.post(url, headers=headers, content=(b"x" * 1000 for _ in range(LIMIT // 1000 + 1)))
    for response in (announced, chunked):
        assert response.status_code == 413
        assert "max-body-bytes" in response.json()["error"]["message"]


def _running(server: str) -> float:
    lines = httpx.get(f"{server}/metrics").text.splitlines()
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting{")
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(names))


def _wait_until_idle(server: str, seconds: float) -> float:
    started = time.monotonic()
    while _running(server) > 0 and time.monotonic() - started < seconds:
        time.sleep(0.1)
    return time.monotonic() - started


@pytest.mark.parametrize("stream", [True, False])
def test_both_requests_end_when_the_client_leaves(server: str, client: OpenAI, stream: bool) -> None:
    options: dict[str, Any] = {"max_tokens": 900, "extra": {"context": CONTEXT, "ignore_eos": True}}
    if stream:
        answer = _ask(client, stream=True, **options)
        next(iter(answer))
        assert _running(server) == 2
        answer.close()
    else:
        with pytest.raises(Exception, match="timed out"):
            _ask(client.with_options(timeout=3), **options)
    assert _wait_until_idle(server, 10) < 10


def test_a_full_engine_turns_pairs_away_and_answers_those_it_took(server: str, client: OpenAI) -> None:
    _wait_until_idle(server, 60)
    expected = _ask(client).choices[0].message.content

    def ask(_: int) -> Any:
        try:
            return _ask(client)
        except APIStatusError as error:
            return error

    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(ask, range(16)))
    refused = [result for result in results if isinstance(result, APIStatusError)]
    answered = [result.choices[0].message.content for result in results if not isinstance(result, APIStatusError)]
    assert refused
    assert {(error.status_code, error.response.headers["retry-after"]) for error in refused} == {(503, "1")}
    assert len(answered) >= 4
    assert set(answered) == {expected}
    assert _ask(client).choices[0].message.content == expected
