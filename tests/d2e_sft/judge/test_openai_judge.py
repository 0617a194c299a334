"""The judge over real HTTP: order, concurrency, throttling, stalls, dropped connections and garbage."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from tqdm import tqdm

from d2e_sft.errors import UserError
from d2e_sft.judge.judge import Judge
from d2e_sft.judge.messages import Prompt
from tests.judge_fixtures import KEY, MakeJudge
from tests.judge_server import JudgeServer, Misbehave, completion

REMINDER = "Begin with echo."


def prompts(count: int) -> list[Prompt]:
    return [Prompt("Repeat.", f"word {number}", label=f"sample s{number}") for number in range(count)]


def read_echo(reply: str) -> str | None:
    return reply.removeprefix("echo: ") if reply.startswith("echo: ") else None


def ask(judge: Judge, asked: list[Prompt]) -> list[str | None]:
    return judge.ask(asked, read_echo, what="echo", reminder=REMINDER)


def words(count: int) -> list[str | None]:
    return [f"word {number}" for number in range(count)]


def test_replies_come_in_the_order_of_the_prompts(server: JudgeServer, judge: MakeJudge) -> None:
    answered: list[str] = []

    def reply(user: str) -> str:
        time.sleep(0.1 if user == "word 0" else 0)
        answered.append(user)
        return f"echo: {user}"

    server.reply = reply
    assert ask(judge(concurrency=4), prompts(12)) == words(12)
    assert answered.index("word 0") > 4


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
    assert len(server.requests) == 1


def test_a_second_run_sends_nothing(server: JudgeServer, judge: MakeJudge) -> None:
    ask(judge(), prompts(5))
    again = judge()
    assert ask(again, prompts(5)) == words(5)
    assert len(server.requests) == 5
    assert (again.usage.asked, again.usage.cached) == (0, 5)


@pytest.mark.parametrize(
    "changed",
    [{"model": "other"}, {"max_tokens": 9}, {"temperature": 0.5}, {"base_url": "http://localhost:{port}/v1"}],
)
def test_a_reply_is_not_taken_for_one_to_another_question(
    server: JudgeServer, judge: MakeJudge, monkeypatch: pytest.MonkeyPatch, changed: dict[str, object]
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    ask(judge(), prompts(1))
    options = {k: v.format(port=server.server_port) if isinstance(v, str) else v for k, v in changed.items()}
    assert ask(judge(**options), prompts(1)) == words(1)
    assert len(server.requests) == 2


def test_a_slash_after_the_address_makes_no_difference(server: JudgeServer, judge: MakeJudge) -> None:
    ask(judge(), prompts(1))
    ask(judge(base_url=server.url + "/"), prompts(1))
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "damage", [b"", b'{"text": "echo: wo', b'{"text": 3}', b"[]", b"\xff\xfe", b'{"text": "echo: x", "more": 1}']
)
def test_a_damaged_reply_is_asked_for_again_and_rewritten(
    server: JudgeServer, judge: MakeJudge, tmp_path: Path, damage: bytes
) -> None:
    ask(judge(), prompts(1))
    (kept,) = (tmp_path / "cache" / "judge").rglob("*.json")
    whole = kept.read_bytes()
    kept.write_bytes(damage)
    assert ask(judge(), prompts(1)) == words(1)
    assert kept.read_bytes() == whole


@pytest.mark.parametrize("status", [429, 503, 500, 408])
def test_a_server_that_throttles_or_fails_is_asked_again(server: JudgeServer, judge: MakeJudge, status: int) -> None:
    server.plan = [Misbehave(status=status), Misbehave(status=status)]
    patient = judge(concurrency=1)
    assert ask(patient, prompts(2)) == words(2)
    assert (patient.usage.asked, patient.usage.retried) == (2, 2)


@pytest.mark.parametrize("headers", [{"Retry-After": "0.4"}, {"Retry-After-Ms": "400"}])
def test_the_wait_that_a_server_asks_for_holds_all_requests_back(
    server: JudgeServer, judge: MakeJudge, headers: dict[str, str]
) -> None:
    server.plan = [Misbehave(status=429, headers=headers)]
    server.delay = 0.1
    ask(judge(concurrency=3), prompts(6))
    assert server.times[3] - server.times[0] > 0.35  # the fourth request is the first after the throttled one


def test_a_wait_may_be_given_as_a_date(server: JudgeServer, judge: MakeJudge) -> None:
    server.plan = [Misbehave(status=503, headers={"Retry-After": formatdate(time.time() + 2, usegmt=True)})]
    ask(judge(), prompts(1))
    assert server.times[1] - server.times[0] > 0.8  # dates have whole seconds


def test_an_illegible_wait_is_the_judges_own(server: JudgeServer, judge: MakeJudge) -> None:
    server.plan = [Misbehave(status=429, headers={"Retry-After": "soon"})]
    assert ask(judge(), prompts(1)) == words(1)


def test_a_wait_beyond_all_patience_ends_the_run(server: JudgeServer, judge: MakeJudge) -> None:
    server.plan = [None, Misbehave(status=429, headers={"Retry-After": "3600"})]
    with pytest.raises(UserError, match=r"asks to wait 3,600 s, longer than the 120 s .* 1 of 2 replies are kept"):
        ask(judge(concurrency=1), prompts(2))


def test_waits_double_up_to_the_longest(server: JudgeServer, judge: MakeJudge) -> None:
    server.plan = [Misbehave(status=500)] * 4
    ask(judge(first_wait=0.1, longest_wait=0.2), prompts(1))
    gaps = [later - sooner for sooner, later in zip(server.times, server.times[1:], strict=False)]
    assert gaps[0] >= 0.05
    assert all(gap >= 0.1 for gap in gaps[1:])
    assert gaps[-1] < 0.4  # doubled three times it would be 0.4 at least


def test_a_stalled_request_is_given_up_and_sent_again(server: JudgeServer, judge: MakeJudge) -> None:
    server.plan = [Misbehave(stall=2.0)]
    patient = judge(timeout=0.5)
    assert ask(patient, prompts(1)) == words(1)
    assert patient.usage.retried == 1


def test_a_dropped_connection_is_taken_up_again(server: JudgeServer, judge: MakeJudge) -> None:
    server.plan = [Misbehave(drop=True), Misbehave(drop=True)]
    assert ask(judge(), prompts(3)) == words(3)


def test_a_body_that_ends_too_soon_is_taken_up_again(server: JudgeServer, judge: MakeJudge) -> None:
    server.plan = [Misbehave(body=b"", headers={"Transfer-Encoding": "chunked"})]
    patient = judge(timeout=0.5)
    assert ask(patient, prompts(1)) == words(1)
    assert patient.usage.retried == 1


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (Misbehave(status=503), "answered 503, at the last of 3 attempts"),
        (Misbehave(stall=0.8), "did not answer within 0.4 s, at the last of 3 attempts"),
        (Misbehave(drop=True), r"cannot be reached \(RemoteProtocolError.*\), at the last of 3 attempts"),
    ],
)
def test_a_server_that_never_recovers_ends_the_run(
    server: JudgeServer, judge: MakeJudge, plan: Misbehave, message: str
) -> None:
    server.plan = [None, *[plan] * 9]
    with pytest.raises(UserError, match=message + ".*; 1 of 4 replies are kept in .*, and the next run goes on"):
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
        (429, b'{"error": {"message": "quota", "code": "insufficient_quota"}}', "429 to sample s0: quota", "credit"),
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


def test_a_model_that_knows_the_limit_by_its_new_name_gets_it_so(server: JudgeServer, judge: MakeJudge) -> None:
    server.refuses_field = "max_tokens"
    server.refusal = b'{"error": {"message": "Unsupported parameter: max_tokens. Use max_completion_tokens instead."}}'
    modern = judge(concurrency=2, temperature=None, max_tokens=50)
    assert ask(modern, prompts(6)) == words(6)
    assert all("temperature" not in request for request in server.requests)
    accepted = [request for request in server.requests if "max_tokens" not in request]
    assert [request["max_completion_tokens"] for request in accepted] == [50] * 6
    assert len(server.requests) <= 8  # each thread learns it once at most


def test_a_refusal_of_both_names_ends_the_run(server: JudgeServer, judge: MakeJudge) -> None:
    server.plan = [Misbehave(status=400, body=b'{"error": "max_tokens, max_completion_tokens: too large"}')] * 9
    with pytest.raises(UserError, match="too large"):
        ask(judge(), prompts(1))
    assert len(server.requests) == 2


def test_replies_under_way_when_a_run_fails_are_kept(server: JudgeServer, judge: MakeJudge) -> None:
    server.plan = [
        Misbehave(body=completion("echo: slow"), stall=1.5),
        Misbehave(status=401, body=b"{}", stall=0.1),
    ]
    with pytest.raises(UserError, match="1 of 9 replies are kept"):
        ask(judge(concurrency=2), prompts(9))
    assert len(server.requests) <= 3


GARBAGE = [
    b"<html>Welcome</html>",
    b"",
    b'{"choices": []}',
    b'{"error": {"message": "overloaded"}}',
    b'{"choices": [{"message": 3}]}',
    b"null",
    b"\xff\xff",
]


@pytest.mark.parametrize("body", GARBAGE)
def test_an_answer_that_is_no_completion_is_asked_for_once_more(
    server: JudgeServer, judge: MakeJudge, body: bytes
) -> None:
    server.plan = [Misbehave(body=body, headers={"Content-Type": "text/html"})]
    forgiving = judge(concurrency=1)
    readings = ask(forgiving, prompts(3))
    assert readings == [f"word 0\n\n{REMINDER}", "word 1", "word 2"]
    assert (forgiving.usage.reasked, forgiving.usage.undecided) == (1, 0)


def test_nothing_is_kept_of_an_answer_that_is_no_completion(server: JudgeServer, judge: MakeJudge) -> None:
    server.plan = [Misbehave(body=b"{}")] * 2
    assert ask(judge(), prompts(1)) == [None]
    assert ask(judge(), prompts(1)) == words(1)


def test_a_server_that_is_no_judge_is_soon_told(server: JudgeServer, judge: MakeJudge) -> None:
    server.plan = [Misbehave(body=b"<html>Please log in</html>")] * 50
    with pytest.raises(UserError, match=r"5 answers in a row were no chat completion; the last: .*Please log in"):
        ask(judge(concurrency=1), prompts(50))
    assert len(server.requests) == 5


@pytest.mark.parametrize("text", [None, "", "I would rather not."])
def test_a_malformed_reply_is_asked_for_once_more_and_then_undecided(
    server: JudgeServer, judge: MakeJudge, text: str | None
) -> None:
    server.plan = [Misbehave(body=completion(text))] * 2
    strict = judge()
    assert ask(strict, prompts(1)) == [None]
    assert server.users == ["word 0", f"word 0\n\n{REMINDER}"]
    assert (strict.usage.asked, strict.usage.reasked, strict.usage.undecided) == (2, 1, 1)
    again = judge()
    assert ask(again, prompts(1)) == [None]
    assert (len(server.requests), again.usage.cached, again.usage.undecided) == (2, 2, 1)


def test_replies_at_the_token_limit_are_counted(server: JudgeServer, judge: MakeJudge) -> None:
    server.finish_reason = "length"
    short = judge()
    ask(short, prompts(2))
    assert short.usage.cut_off == 2
    assert "2 cut off (raise --judge-max-tokens)" in short.describe_usage()


def test_cost_is_tokens_times_price(server: JudgeServer, judge: MakeJudge) -> None:
    priced = judge(price_in=2.5, price_out=10)
    ask(priced, prompts(4))  # each has 10 prompt tokens, and 3 of reply: echo, word and the number
    assert (priced.usage.prompt_tokens, priced.usage.completion_tokens) == (40, 12)
    assert priced.describe_usage().endswith("; 40 prompt + 12 reply tokens, $0.0002")
    unpriced = judge()
    ask(unpriced, prompts(4))
    assert unpriced.describe_usage().endswith("0 prompt + 0 reply tokens")


def test_tokens_that_a_server_does_not_count_are_guessed_and_said_so(server: JudgeServer, judge: MakeJudge) -> None:
    server.usage = False
    priced = judge(price_in=1e6, price_out=1e6)
    ask(priced, prompts(1))  # "Repeat." and "word 0" are 2 tokens each, "echo: word 0" is 3
    assert priced.describe_usage().endswith("about 4 prompt + 3 reply tokens, about $7.0000")


def test_the_estimate_bounds_what_is_then_used(server: JudgeServer, judge: MakeJudge) -> None:
    ask(judge(), prompts(3))
    priced = judge(price_in=2, price_out=8, max_tokens=512)
    estimate = priced.estimate([*prompts(10), *prompts(10)])
    assert (estimate.requests, estimate.cached) == (7, 3)
    assert len(server.requests) == 3
    assert (estimate.prompt_tokens, estimate.most_completion_tokens) == (7 * 4, 7 * 512)
    assert estimate.most_cost == pytest.approx((28 * 2 + 7 * 512 * 8) / 1e6)
    ask(priced, prompts(10))
    assert priced.usage.asked == estimate.requests
    assert priced.usage.completion_tokens <= estimate.most_completion_tokens
    assert str(estimate).startswith(
        "7 requests (3 replies already at hand), 28 prompt tokens (guessed at 4 characters a token), at most 3,584 "
        "reply tokens; at most $0.0287;"
    )
    assert "no price given" in str(judge().estimate(prompts(1)))


def test_the_key_is_nowhere_on_the_disk_and_in_no_message(
    server: JudgeServer, judge: MakeJudge, tmp_path: Path
) -> None:
    server.plan = [None, Misbehave(status=401, body=f'{{"error": "wrong key {KEY}"}}'.encode())]
    with pytest.raises(UserError, match=r"wrong key \[key\]") as caught:
        ask(judge(concurrency=1), prompts(2))
    assert KEY not in str(caught.value)
    files = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert files
    assert all(KEY.encode() not in path.read_bytes() for path in files)


def test_a_cache_that_cannot_be_written_is_told_before_anything_is_asked(
    server: JudgeServer, judge: MakeJudge, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"replies cannot be kept \(File exists\)") as caught:
        ask(judge(cache=tmp_path / "file"), prompts(1))
    assert "--judge-cache" in (caught.value.remedy or "")
    assert server.requests == []


def test_a_reply_that_cannot_be_written_ends_the_run(
    server: JudgeServer, judge: MakeJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("d2e_sft.judge.cache.sync", full)
    with pytest.raises(UserError, match=r"cannot be kept \(No space left on device\); 0 of 5 replies are kept"):
        ask(judge(concurrency=1), prompts(5))
    assert len(server.requests) == 1


_CHILD = """
import signal, sys
from d2e_sft.judge.judge import make_judge
from d2e_sft.judge.messages import Prompt
from d2e_sft.judge.options import JudgeOptions
# A shell's background jobs, and so these tests in one, are started with interrupts ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
judge = make_judge(JudgeOptions(backend="openai", model="m", base_url=sys.argv[1], concurrency=2))
prompts = [Prompt("Repeat.", f"word {n}") for n in range(40)]
judge.ask(prompts, str, what="echo", reminder="")
print("finished", judge.usage.asked)
"""


def _start_child(server: JudgeServer) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _CHILD, server.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_an_ended_run_goes_on_where_it_was(server: JudgeServer, tmp_path: Path, end: signal.Signals) -> None:
    server.delay = 0.3  # so that a loaded machine, too, ends the run before it has finished
    child = _start_child(server)
    deadline = time.monotonic() + 60
    while len(server.requests) < 12 and time.monotonic() < deadline:
        time.sleep(0.005)
    os.kill(child.pid, end)
    _, printed = child.communicate(timeout=30)
    assert child.returncode != 0
    kept = len(list((tmp_path / "cache" / "judge").rglob("*.json")))
    assert 10 <= kept < 40
    sent_before = list(server.users)
    if end is signal.SIGINT:
        assert f"echo: stopped; {kept} of 40 replies are kept in" in printed
        assert len(sent_before) == kept  # requests under way were waited for
    assert len(sent_before) - kept <= 2  # at most those under way were lost
    child = _start_child(server)
    assert child.communicate(timeout=60)[0].strip() == f"finished {40 - kept}"
    assert len(server.users) == len(sent_before) + 40 - kept


def test_progress_shows_what_it_has_cost(
    server: JudgeServer, judge: MakeJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = io.StringIO()

    def to_a_terminal(**options: Any) -> Any:
        return tqdm(**{**options, "disable": False, "file": shown, "ncols": 100, "mininterval": 0})

    monkeypatch.setattr("d2e_sft.judge.judge.tqdm", to_a_terminal)
    server.plan = [None, Misbehave(status=503)]
    ask(judge(price_in=1e4, price_out=1e4, concurrency=1), prompts(3))  # 13 tokens each
    assert "echo (m): 100%" in shown.getvalue()
    assert re.search(r"1/3 \[.*, \$0\.1300\]", shown.getvalue())
    assert re.search(r"3/3 \[.*, \$0\.3900, 1 retried\]", shown.getvalue())


def test_nothing_asked_is_nothing_sent(server: JudgeServer, judge: MakeJudge) -> None:
    assert ask(judge(), []) == []
    assert judge().estimate([]).requests == len(server.requests) == 0


def test_the_judge_may_be_asked_from_any_thread(server: JudgeServer, judge: MakeJudge) -> None:
    answers: list[list[str | None]] = []
    thread = threading.Thread(target=lambda: answers.append(ask(judge(), prompts(3))))
    thread.start()
    thread.join()
    assert answers == [words(3)]


def test_a_log_gets_a_line_now_and_then(
    server: JudgeServer, judge: MakeJudge, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("d2e_sft.judge.judge._LOG_EVERY", 2)
    ask(judge(price_in=1e4, price_out=1e4, concurrency=1), prompts(5))
    lines = [line for line in capsys.readouterr().err.splitlines() if "replies" in line]
    assert lines == ["echo: 2 of 5 replies, $0.2600", "echo: 4 of 5 replies, $0.5200"]


@pytest.mark.parametrize("usage", [{"prompt_tokens": -3, "completion_tokens": "7"}, "none", [1], None])
def test_a_reply_is_not_lost_over_an_odd_bill(server: JudgeServer, judge: MakeJudge, usage: Any) -> None:
    body = {"choices": [{"message": {"content": "echo: paid"}}], "usage": usage}
    server.plan = [Misbehave(body=json.dumps(body).encode())]
    asked = judge()
    assert ask(asked, prompts(1)) == ["paid"]
    assert asked.usage.guessed
    assert asked.usage.completion_tokens > 0
