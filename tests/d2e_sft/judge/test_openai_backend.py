"""What the judge sends over HTTP: order, content, how many at a time, each question once."""

from __future__ import annotations

import time

from d2e_sft.judge.messages import Prompt
from tests.d2e_sft.judge.echo import ask, prompts, words
from tests.judge_server import KEY, JudgeServer, MakeJudge


def test_replies_come_in_the_order_of_the_prompts(server: JudgeServer, judge: MakeJudge) -> None:
    answered: list[str] = []

    def reply(user: str) -> str:
        until = time.monotonic() + 10
        while user == "word 0" and len(answered) < 4 and time.monotonic() < until:
            time.sleep(0.001)
        answered.append(user)
        return f"echo: {user}"

    server.reply = reply
    assert ask(judge(concurrency=4), prompts(12)) == words(12)
    assert answered.index("word 0") >= 4


def test_a_request_has_model_messages_and_sampling_and_the_key(server: JudgeServer, judge: MakeJudge) -> None:
    ask(judge(max_tokens=77), prompts(1))
    assert server.requests == [
        {
            "model": "m",
            "messages": [{"role": "system", "content": "Repeat."}, {"role": "user", "content": "word 0"}],
            "max_tokens": 77,
            "temperature": 0.0,
        }
    ]
    assert server.keys == [f"Bearer {KEY}"]


def test_requests_under_way_reach_the_limit_and_never_exceed_it(server: JudgeServer, judge: MakeJudge) -> None:
    server.delay = 0.05
    ask(judge(concurrency=3), prompts(12))
    assert server.most_under_way == 3


def test_the_same_prompt_is_asked_once(server: JudgeServer, judge: MakeJudge) -> None:
    asked = [Prompt("Repeat.", "word 0", label="a"), Prompt("Repeat.", "word 0", label="b"), *prompts(1)]
    assert ask(judge(), asked) == ["word 0"] * 3
    again = judge(base_url=server.url + "/")
    ask(again, asked)
    assert (again.usage.asked, again.usage.cached) == (0, 1)
    assert ask(judge(), []) == []
    assert len(server.requests) == 1


def test_a_model_that_knows_the_limit_by_its_new_name_gets_it_so(server: JudgeServer, judge: MakeJudge) -> None:
    server.refuses_field = "max_tokens"
    server.refusal = b'{"error": {"message": "Unsupported parameter: max_tokens. Use max_completion_tokens instead."}}'
    modern = judge(concurrency=2, temperature=None, max_tokens=50)
    assert ask(modern, prompts(6)) == words(6)
    assert all("temperature" not in request for request in server.requests)
    accepted = [request for request in server.requests if "max_tokens" not in request]
    assert [request["max_completion_tokens"] for request in accepted] == [50] * 6
    assert len(server.requests) <= 8  # each thread learns it once at most
