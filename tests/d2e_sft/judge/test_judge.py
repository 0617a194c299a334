"""Answers that are no completion, no reading, or cut off at the limit."""

from __future__ import annotations

import pytest

from d2e_sft.util.errors import UserError
from tests.d2e_sft.judge.echo import REMINDER, ask, prompts, words
from tests.judge_server import JudgeServer, MakeJudge, Misbehave, completion

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
def test_an_unusable_answer_is_asked_for_once_more(server: JudgeServer, judge: MakeJudge, body: bytes) -> None:
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
