"""Pairs among other requests: they draw alike, end with their client, and are turned away when the engine is full."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: make test-vllm")

from openai import APIStatusError, OpenAI

from tests.d2e_sft.vllm.served import CONTEXT, ask, requests_inside, seconds_until_idle

pytestmark = pytest.mark.timeout(900)


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
