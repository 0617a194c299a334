"""An endpoint over HTTP: what is sent, what is sent again, what is refused, and servers that mean harm."""

import gzip
import time

import pytest

from d2e_sft.judge.endpoint import LARGEST
from d2e_sft.judge.judge import JudgePrompt
from d2e_sft.util.errors import UserError
from tests.judge_server import HARM, KEY, REMINDER, JudgeServer, MakeJudge, Misbehave, ask, harm, prompts, words


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
    asked = [JudgePrompt("Repeat.", "word 0", label="a"), JudgePrompt("Repeat.", "word 0", label="b"), *prompts(1)]
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


@pytest.mark.parametrize(
    "plan",
    [
        *(Misbehave(status=status) for status in (429, 503, 500, 408)),
        Misbehave(stall=2.0),
        Misbehave(drop=True),
        Misbehave(body=b"", headers={"Transfer-Encoding": "chunked"}),
    ],
)
def test_a_failing_or_slow_server_is_asked_again(server: JudgeServer, judge: MakeJudge, plan: Misbehave) -> None:
    server.plan = [plan]
    patient = judge(concurrency=1, timeout=0.5)
    assert ask(patient, prompts(2)) == words(2)
    assert (patient.usage.asked, patient.usage.retried) == (2, 1)


def test_the_wait_that_a_server_asks_for_is_kept(server: JudgeServer, judge: MakeJudge) -> None:
    server.plan = [Misbehave(status=429, headers={"Retry-After": "0.4"})]
    assert ask(judge(), prompts(1)) == words(1)
    assert server.times[1] - server.times[0] > 0.35


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (Misbehave(status=503), "answered 503 to sample s1: "),
        (Misbehave(stall=0.8), "did not answer within 0.4 s, in the last of 3 attempts"),
        (Misbehave(drop=True), r"cannot be reached \(RemoteProtocolError.*\), in the last of 3 attempts"),
    ],
)
def test_a_dead_server_ends_the_run(server: JudgeServer, judge: MakeJudge, plan: Misbehave, message: str) -> None:
    server.plan = [None, *[plan] * 9]
    with pytest.raises(UserError, match=message + ".*; 1 of 4 replies are kept in .*, and the next run resumes"):
        ask(judge(attempts=3, concurrency=1, timeout=0.4), prompts(4))
    server.plan = []
    asked_before = len(server.requests)
    assert ask(judge(), prompts(4)) == words(4)
    assert "word 0" not in server.users[asked_before:]


@pytest.mark.parametrize(
    ("status", "body", "message", "remedy"),
    [
        (400, b'{"error": {"message": "too long"}}', "answered 400 to sample s0: too long", "--judge-max-tokens"),
        (401, b'{"error": {"message": "bad key"}}', "answered 401: bad key", "--judge-key-env"),
        (402, b'{"detail": "pay first"}', "answered 402 to sample s0: pay first", "credit"),
        (403, b'{"message": "not yours"}', "answered 403: not yours", "--judge-model"),
        (404, b"<h1>Not\n Found</h1>", "answered 404: <h1>Not Found</h1>", "ends in /v1"),
        (422, b'{"error": "no"}', "answered 422 to sample s0: no", "--judge-max-tokens"),
        (429, b'{"error": {"message": "Over quota", "code": "insufficient_quota"}}', "Over quota", "add some"),
    ],
)
def test_a_refusal_ends_the_run_at_once(
    server: JudgeServer, judge: MakeJudge, status: int, body: bytes, message: str, remedy: str
) -> None:
    server.plan = [Misbehave(status=status, body=body)] * 5
    with pytest.raises(UserError, match=message) as caught:
        ask(judge(concurrency=1), prompts(1))
    assert f"judge 'm' at {server.url}" in str(caught.value)
    assert remedy in (caught.value.remedy or "")
    assert len(server.requests) == 1


GARBAGE = [
    b"<html>Welcome</html>",
    b"",
    b'{"choices": []}',
    b'{"choices": [{"message": 3}]}',
    b"\xff\xff",
]


@pytest.mark.parametrize("body", GARBAGE)
def test_an_unusable_answer_is_asked_for_once_more(server: JudgeServer, judge: MakeJudge, body: bytes) -> None:
    server.plan = [Misbehave(body=body, headers={"Content-Type": "text/html"})]
    forgiving = judge(concurrency=1)
    readings = ask(forgiving, prompts(3))
    assert readings == [f"word 0\n\n{REMINDER}", "word 1", "word 2"]
    assert (forgiving.usage.reasked, forgiving.usage.undecided) == (1, 0)
    assert ask(judge(), prompts(1)) == words(1), "nothing was kept of it"


def test_a_server_that_is_no_judge_is_soon_told(server: JudgeServer, judge: MakeJudge) -> None:
    server.plan = [Misbehave(body=b"<html>Please log in</html>")] * 50
    with pytest.raises(UserError, match=r"5 answers in a row were no chat completion; the last: .*Please log in"):
        ask(judge(concurrency=1), prompts(50))
    assert len(server.requests) == 5


@pytest.mark.parametrize("kind", HARM)
def test_an_answer_without_end_is_given_up(server: JudgeServer, judge: MakeJudge, kind: str) -> None:
    is_large = kind == "a body without end, flooded"  # which its size ends, however long it may take
    server.act = lambda handler: harm(handler, kind)
    started = time.monotonic()
    said = f"sends more than {LARGEST >> 20} MiB" if is_large else ""
    with pytest.raises(UserError, match=f"{said}.*, in the last of 2 attempts"):
        ask(judge(timeout=5 if is_large else 0.1, attempts=2), prompts(1))
    assert time.monotonic() - started < 20


def test_a_compressed_answer_is_not_unpacked(server: JudgeServer, judge: MakeJudge) -> None:
    bomb = gzip.compress(b" " * 20_000_000)
    server.act = lambda handler: handler.reply(200, bomb, {"Content-Encoding": "gzip"})
    with pytest.raises(UserError, match=r"sends a compressed answer \(gzip\)"):
        ask(judge(attempts=2), prompts(1))


@pytest.mark.parametrize("status", [301, 308])
def test_a_redirect_gets_neither_key_nor_texts(server: JudgeServer, judge: MakeJudge, status: int) -> None:
    with JudgeServer() as other:
        server.act = lambda handler: handler.reply(status, b"", {"Location": f"{other.url}/chat/completions"})
        with pytest.raises(UserError, match=f"answered {status}, a redirect, which is not followed"):
            ask(judge(), prompts(1))
        assert other.keys == []
    assert server.keys == [f"Bearer {KEY}"]
