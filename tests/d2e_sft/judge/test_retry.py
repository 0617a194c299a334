"""Servers that throttle, stall, drop connections, fail or refuse."""

from __future__ import annotations

import pytest

from d2e_sft.util.errors import UserError
from tests.d2e_sft.judge.echo import ask, prompts, words
from tests.judge_server import JudgeServer, MakeJudge, Misbehave


@pytest.mark.parametrize(
    "plan",
    [
        *(Misbehave(status=status) for status in (429, 503, 500, 408)),
        Misbehave(stall=2.0),
        Misbehave(drop=True),
        Misbehave(body=b"", headers={"Transfer-Encoding": "chunked"}),
    ],
)
def test_a_server_that_throttles_fails_stalls_or_drops_is_asked_again(
    server: JudgeServer, judge: MakeJudge, plan: Misbehave
) -> None:
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
def test_a_server_that_never_recovers_ends_the_run(
    server: JudgeServer, judge: MakeJudge, plan: Misbehave, message: str
) -> None:
    server.plan = [None, *[plan] * 9]
    with pytest.raises(UserError, match=message + ".*; 1 of 4 replies are kept in .*, and the next run resumes"):
        ask(judge(attempts=3, concurrency=1, timeout=0.4), prompts(4))
    server.plan = []
    asked_before = len(server.requests)
    assert ask(judge(), prompts(4)) == words(4)
    assert "word 0" not in server.users[asked_before:]


def test_an_unreachable_server_is_named(judge: MakeJudge) -> None:
    with pytest.raises(UserError, match=r"'m' at http://127.0.0.1:9/v1: cannot be reached \(ConnectError") as caught:
        ask(judge(base_url="http://127.0.0.1:9/v1", attempts=2), prompts(1))
    assert "--judge-url" in str(caught.value)


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


def test_a_refusal_of_both_names_ends_the_run(server: JudgeServer, judge: MakeJudge) -> None:
    server.plan = [Misbehave(status=400, body=b'{"error": "max_tokens, max_completion_tokens: too large"}')] * 9
    with pytest.raises(UserError, match="too large"):
        ask(judge(), prompts(1))
    assert len(server.requests) == 2
