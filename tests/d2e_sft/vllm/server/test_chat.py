"""`d2e serve`, asked by the `openai` client."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: make test-vllm")

import httpx
from openai import APIStatusError, AuthenticationError, BadRequestError, OpenAI

from d2e_sft.decoding import DecodingConfig, generate_debiased
from d2e_sft.model.storage.folder import BUILTIN
from tests.d2e_sft.vllm.served import CONTEXT, KEY, LIMIT, QUESTION, SYSTEM, ask, requests_inside, seconds_until_idle

pytestmark = pytest.mark.timeout(900)


def _prompt(tokenizer: Any, user: str) -> list[int]:
    text = tokenizer.apply_chat_template(
        [SYSTEM, {"role": "user", "content": user}], tokenize=False, add_generation_prompt=True
    )
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def _expected(loaded: Any, original: str, imagined: str | None, alpha: float, decoder: str = "d2e") -> str:
    answers = generate_debiased(
        loaded.model,
        [_prompt(loaded.tokenizer, original)],
        None if imagined is None else [_prompt(loaded.tokenizer, imagined)],
        DecodingConfig(alpha=alpha, decoder=decoder, max_new_tokens=24),
        stop_ids=[2],
    )
    return str(loaded.tokenizer.decode(answers[0], skip_special_tokens=True))


@pytest.mark.parametrize(
    "how", [{"alpha": 0.3}, {"alpha": 0.9}, {"decoder": "cad:weight=2"}, {"decoder": "adacad:floor=0.3"}]
)
def test_a_context_is_debiased_as_in_process(client: OpenAI, in_process: Any, how: dict[str, Any]) -> None:
    answer = ask(client, extra={"context": CONTEXT, **how})
    original = f"Context: {CONTEXT}\n{QUESTION}"
    assert answer.choices[0].message.content == _expected(in_process, original, QUESTION, **{"alpha": 0.0, **how})
    assert answer.usage.prompt_tokens == len(_prompt(in_process.tokenizer, original))


def test_a_request_without_context_is_vllms_own(client: OpenAI, in_process: Any) -> None:
    answer = ask(client, extra={})
    assert answer.choices[0].message.content == _expected(in_process, QUESTION, None, 0.0)
    several = ask(client, extra={}, n=2, temperature=1.0, logprobs=True)
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


@pytest.mark.parametrize(
    ("extra", "options", "said"),
    [
        ({"context": CONTEXT, "alpha": -0.5}, {}, "alpha"),
        ({"context": 5}, {}, "context"),
        ({"context": CONTEXT, "alhpa": 0.5}, {}, "alhpa"),
        ({"alpha": 0.5}, {}, "context"),
        ({"context": CONTEXT, "decoder": "adcad"}, {}, "adacad"),
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
        ask(client, extra=extra, **options)
    assert said in json.dumps(refused.value.body)
    assert refused.value.body["message"]  # type: ignore[index]


def test_without_the_key_nothing_is_answered(server: str) -> None:
    stranger = OpenAI(base_url=f"{server}/v1", api_key="another", max_retries=0)
    with pytest.raises(AuthenticationError):
        ask(stranger)
    assert httpx.post(f"{server}/v1/chat/completions", content=b"x" * (LIMIT * 4)).status_code == 401
    assert httpx.get(f"{server}/health").status_code == 200


def test_a_body_beyond_the_limit_is_refused_with_and_without_its_length(server: str) -> None:
    url, headers = f"{server}/v1/chat/completions", {"Authorization": f"Bearer {KEY}"}
    announced = httpx.post(url, headers=headers, content=b"x" * (LIMIT + 1))
    chunked = httpx.post(url, headers=headers, content=(b"x" * 1000 for _ in range(LIMIT // 1000 + 1)))
    for response in (announced, chunked):
        assert response.status_code == 413
        assert "max-body-bytes" in response.json()["error"]["message"]


def test_other_pages_and_bodies_that_are_not_json_are_refused(server: str) -> None:
    url, key = f"{server}/v1/chat/completions", {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    half = json.dumps({"model": BUILTIN, "messages": [{"role": "user", "content": "\ud800"}]})
    for headers, status in (
        ({"Origin": "null"}, 403),
        ({"Host": "evil.example"}, 403),
        ({"Content-Type": "text/plain"}, 415),
    ):
        assert httpx.post(url, headers={**key, **headers}, content=half).status_code == status
    assert httpx.options(url, headers={"Origin": "https://evil.example"}).status_code == 403
    for body in (half, '{"model": 1, "model": 2}', '{"temperature": NaN}'):
        assert httpx.post(url, headers=key, content=body).status_code == 400


def test_equal_seeds_draw_equal_answers_whatever_else_the_engine_does(client: OpenAI) -> None:
    alone = ask(client, temperature=1.0, top_p=0.95, seed=7).choices[0].message.content
    with ThreadPoolExecutor(5) as pool:
        busy = pool.map(lambda seed: ask(client, temperature=1.0, top_p=0.95, seed=seed), [7, 8, 9, 7, 10])
        texts = [answer.choices[0].message.content for answer in busy]
    assert texts[0] == texts[3] == alone
    assert len(set(texts)) == 4


@pytest.mark.parametrize("stream", [True, False])
def test_both_requests_end_when_the_client_leaves(server: str, client: OpenAI, stream: bool) -> None:
    options: dict[str, Any] = {"max_tokens": 900, "extra": {"context": CONTEXT, "ignore_eos": True}}
    if stream:
        answer = ask(client, stream=True, **options)
        next(iter(answer))
        assert requests_inside(server) == 2
        answer.close()
    else:
        with pytest.raises(Exception, match="timed out"):
            ask(client.with_options(timeout=3), **options)
    assert seconds_until_idle(server, 10) < 10


def test_a_full_engine_turns_pairs_away_and_answers_those_it_took(server: str, client: OpenAI) -> None:
    seconds_until_idle(server, 60)
    expected = ask(client).choices[0].message.content

    def attempt(_: int) -> Any:
        try:
            return ask(client)
        except APIStatusError as error:
            return error

    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(attempt, range(16)))
    refused = [result for result in results if isinstance(result, APIStatusError)]
    answered = [result.choices[0].message.content for result in results if not isinstance(result, APIStatusError)]
    assert refused
    assert {(error.status_code, error.response.headers["retry-after"]) for error in refused} == {(429, "1")}
    assert len(answered) >= 4
    assert set(answered) == {expected}
    assert ask(client).choices[0].message.content == expected


def test_a_stream_is_one_answer_in_pieces_with_its_usage(client: OpenAI) -> None:
    whole = ask(client)
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}))
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == whole.choices[0].message.content
    assert sum(bool(piece) for piece in pieces) > 3
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason
    assert chunks[-1].usage == whole.usage


def test_stop_strings_end_an_answer_as_in_vllm(client: OpenAI) -> None:
    text = ask(client).choices[0].message.content
    stop = text[8:11]
    for stream in (False, True):
        if stream:
            chunks = [c for c in ask(client, stop=[stop], stream=True) if c.choices]
            cut = "".join(c.choices[0].delta.content or "" for c in chunks)
            reason = chunks[-1].choices[0].finish_reason
        else:
            choice = ask(client, stop=[stop]).choices[0]
            cut, reason = choice.message.content, choice.finish_reason
        assert (cut, reason) == (text[: text.index(stop)], "stop")
