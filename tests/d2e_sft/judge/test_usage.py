"""What a judge has cost and may cost, and how it is shown."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import pytest
from tqdm import tqdm

from d2e_sft.util.errors import UserError
from tests.d2e_sft.judge.echo import ask, prompts, words
from tests.judge_server import JudgeServer, MakeJudge, Misbehave


def test_cost_is_tokens_times_price(server: JudgeServer, judge: MakeJudge) -> None:
    priced = judge(prices=(2.5, 10))
    ask(priced, prompts(4))  # each has 10 prompt tokens, and 3 of reply: echo, word and the number
    assert (priced.usage.prompt_tokens, priced.usage.completion_tokens) == (40, 12)
    assert priced.usage.describe().endswith("; 40 prompt + 12 reply tokens, $0.0002")
    server.finish_reason = "length"
    ask(priced, prompts(6))
    assert "2 cut off (raise --judge-max-tokens)" in priced.usage.describe()
    unpriced = judge()
    ask(unpriced, prompts(4))
    assert unpriced.usage.describe().endswith("0 prompt + 0 reply tokens")


def test_tokens_that_a_server_does_not_count_are_guessed_and_said_so(server: JudgeServer, judge: MakeJudge) -> None:
    server.usage = False
    priced = judge(prices=(1e6, 1e6))
    ask(priced, prompts(1))  # "Repeat." and "word 0" are 2 tokens each, "echo: word 0" is 3
    assert priced.usage.describe().endswith("about 4 prompt + 3 reply tokens, about $7.0000")


def test_the_estimate_bounds_what_is_then_used(server: JudgeServer, judge: MakeJudge) -> None:
    ask(judge(), prompts(3))
    priced = judge(prices=(2, 8), max_tokens=512)
    # 7 times 4 and 512 tokens: (28 * 2 + 7 * 512 * 8) / 1e6
    assert priced.estimate([*prompts(10), *prompts(10)]).startswith(
        "7 requests (3 replies already cached), 28 prompt tokens (guessed at 4 characters per token), at most 3,584 "
        "reply tokens; at most $0.0287;"
    )
    assert len(server.requests) == 3
    ask(priced, prompts(10))
    assert priced.usage.asked == 7
    assert "no price given" in judge().estimate(prompts(1))


def test_progress_shows_what_it_has_cost(
    server: JudgeServer, judge: MakeJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = io.StringIO()

    def to_a_terminal(**options: Any) -> Any:
        return tqdm(**{**options, "disable": False, "file": shown, "ncols": 100, "mininterval": 0})

    monkeypatch.setattr("d2e_sft.judge.judge.Progress", to_a_terminal)
    server.plan = [None, Misbehave(status=503)]
    ask(judge(prices=(1e4, 1e4), concurrency=1), prompts(3))  # 13 tokens each
    assert "echo (m): 100%" in shown.getvalue()
    assert re.search(r"3/3 \[.*, \$0\.3900, 1 retried\]", shown.getvalue())


def test_a_log_gets_a_line_now_and_then(
    server: JudgeServer, judge: MakeJudge, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("d2e_sft.judge.judge._LOG_EVERY", 2)
    ask(judge(prices=(1e4, 1e4), concurrency=1), prompts(5))
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


def test_a_limit_on_the_cost_holds_whatever_the_server_says(server: JudgeServer, judge: MakeJudge) -> None:
    server.usage = False
    # Each request may cost 200 tokens of $1 per million and more for its prompt; ten may not cost $0.0006.
    limited = judge(prices=(1.0, 1.0), max_cost=0.0006, max_tokens=200, concurrency=4)
    server.reply = lambda user: "word " * 200  # all that a reply may have
    with pytest.raises(UserError, match=r"expected at most \$0.0006 together .*of 10 replies are kept"):
        ask(limited, prompts(10))
    assert 1 <= len(server.requests) <= 2


def test_what_is_refused_costs_nothing_and_what_breaks_off_counts_whole(server: JudgeServer, judge: MakeJudge) -> None:
    options = {"prices": (1, 1), "max_cost": 0.0006, "max_tokens": 200, "concurrency": 1}
    server.plan = [Misbehave(429, {"retry-after-ms": "1"})] * 6
    assert ask(judge(**options), prompts(1)) == words(1)
    server.plan = [Misbehave(drop=True)] * 6
    with pytest.raises(UserError, match="--judge-max-cost"):
        ask(judge(**options), prompts(2))
    assert len(server.requests) == 7 + 2
