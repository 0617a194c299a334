"""The judge, an endpoint or a local model: replies are kept, unreadable ones asked for again, costs are counted."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch

from d2e_sft.judge.judge import Judge, JudgePrompt, make_judge
from d2e_sft.judge.options import JudgeOptions
from d2e_sft.util import progress
from d2e_sft.util.errors import UserError
from tests.judge_server import REMINDER, JudgeServer, MakeJudge, Misbehave, ask, completion, prompts, words
from tests.tiny import save_tiny_model, tiny_model, tiny_t5_tokenizer, tiny_tokenizer


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


@pytest.mark.parametrize(
    "damage", [b"", b'{"text": "echo: wo', b'{"text": 3}', b"[]", b"\xff\xfe", b'{"text": "echo: x", "more": 1}']
)
def test_a_damaged_reply_is_asked_for_again_and_rewritten(
    server: JudgeServer, judge: MakeJudge, tmp_path: Path, damage: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    ask(judge(), prompts(1))
    (kept,) = (tmp_path / "cache" / "judge").rglob("*.json")
    whole = kept.read_bytes()
    kept.write_bytes(damage)
    assert ask(judge(), prompts(1)) == words(1)
    assert kept.read_bytes() == whole
    assert f"1 kept reply is damaged, such as {kept}; their prompts are asked again" in capsys.readouterr().err


def test_a_kept_reply_of_gigabytes_is_damaged_and_not_read_whole(
    server: JudgeServer, judge: MakeJudge, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ask(judge(), prompts(1))
    (kept,) = (tmp_path / "cache" / "judge").rglob("*.json")
    os.truncate(kept, 3 << 30)  # zeros, which take no room on the disk
    tracemalloc.start()
    assert ask(judge(), prompts(1)) == words(1)
    assert tracemalloc.get_traced_memory()[1] < 100 << 20
    tracemalloc.stop()
    assert "1 kept reply is damaged" in capsys.readouterr().err
    assert kept.stat().st_size < 1000


def test_only_readings_of_kept_replies_are_collected(server: JudgeServer, judge: MakeJudge, tmp_path: Path) -> None:
    server.reply = lambda user: f"echo: {user}" + " " * (1 << 19)
    for _ in ("asked", "kept"):
        tracemalloc.start()
        read = judge(concurrency=1).ask(prompts(160), lambda reply: reply.split()[-1], job="echo", reminder="")
        assert read == [str(number) for number in range(160)]
        assert tracemalloc.get_traced_memory()[1] < 40 << 20  # of 80 in all
        tracemalloc.stop()
    assert len(server.requests) == 160


def test_a_changed_or_misplaced_reply_is_no_reply(server: JudgeServer, judge: MakeJudge, tmp_path: Path) -> None:
    ask(judge(), prompts(2))
    first, second = (tmp_path / "cache" / "judge").rglob("*.json")
    first.write_bytes(first.read_bytes().replace(b"echo: ", b"Echo: "))
    assert ask(judge(), prompts(2)) == words(2)
    second.write_bytes(first.read_bytes())
    assert ask(judge(), prompts(2)) == words(2)
    assert len(server.requests) == 4


def test_replies_under_way_when_a_run_fails_are_kept(server: JudgeServer, judge: MakeJudge) -> None:
    server.plan = [
        Misbehave(body=completion("echo: slow"), stall=1.5),
        Misbehave(status=401, body=b"{}", stall=0.1),
    ]
    with pytest.raises(UserError, match="1 of 9 replies are kept"):
        ask(judge(concurrency=2), prompts(9))
    assert len(server.requests) <= 3


def test_a_read_only_cache_is_told_before_any_request(server: JudgeServer, judge: MakeJudge, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"replies cannot be kept \(File exists\)") as caught:
        ask(judge(cache=tmp_path / "file"), prompts(1))
    assert "--judge-cache" in (caught.value.remedy or "")
    assert server.requests == []


def test_a_full_disk_ends_the_run(server: JudgeServer, judge: MakeJudge, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("d2e_sft.util.files.sync", full)
    with pytest.raises(UserError, match=r"cannot be kept \(No space left on device\); 0 of 5 replies are kept"):
        ask(judge(concurrency=1), prompts(5))
    assert len(server.requests) == 1


_CHILD = """
import signal, sys
from d2e_sft.judge.judge import JudgePrompt, make_judge
from d2e_sft.judge.options import JudgeOptions
# A shell's background jobs, and so these tests in one, are started with interrupts ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
options = {"base_url": sys.argv[1], "timeout": sys.argv[2], "concurrency": 2}
judge = make_judge(JudgeOptions(backend="openai", model="m", **options))
judge.ask([JudgePrompt("Repeat.", f"word {n}") for n in range(20)], str, job="echo", reminder="")
"""


def _interrupted(server: JudgeServer, after: int, timeout: float) -> str:
    """Press Ctrl-C in a run of 20 prompts after a number of requests; returns what the run prints."""
    command = [sys.executable, "-c", _CHILD, server.url, str(timeout)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
        deadline = time.monotonic() + 60
        while len(server.requests) < after and time.monotonic() < deadline:
            time.sleep(0.005)
        child.send_signal(signal.SIGINT)
        printed = child.communicate(timeout=30)[1]
    assert child.returncode != 0
    return printed


def test_an_interrupted_run_resumes(server: JudgeServer, judge: MakeJudge, tmp_path: Path) -> None:
    server.delay = 0.15  # so that the run cannot finish before it is ended, on a slow machine either
    printed = _interrupted(server, 8, timeout=60)
    kept = len(list((tmp_path / "cache" / "judge").rglob("*.json")))
    assert 6 <= kept < 20
    assert f"echo: stopped; {kept} of 20 replies are kept in" in printed
    assert len(server.requests) == kept  # requests under way were waited for
    server.delay = 0
    assert ask(judge(), prompts(20)) == words(20)
    assert len(server.requests) == 20


def test_one_ctrl_c_ends_a_run_against_a_server_that_stalls(server: JudgeServer) -> None:
    server.plan = [Misbehave(stall=60)] * 40
    printed = _interrupted(server, 2, timeout=1)
    assert "waiting at most 1 s for open requests" in printed
    assert "0 of 20 replies are kept" in printed


@pytest.mark.parametrize("text", [None, "", "I would rather not."])
def test_a_malformed_reply_is_asked_for_once_more(server: JudgeServer, judge: MakeJudge, text: str | None) -> None:
    server.plan = [Misbehave(body=completion(text))] * 2
    strict = judge()
    assert ask(strict, prompts(1)) == [None]
    assert server.users == ["word 0", f"word 0\n\n{REMINDER}"]
    assert (strict.usage.asked, strict.usage.reasked, strict.usage.undecided) == (2, 1, 1)
    again = judge()
    assert ask(again, prompts(1)) == [None]
    assert (len(server.requests), again.usage.cached, again.usage.undecided) == (2, 2, 1)


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
    server: JudgeServer, judge: MakeJudge, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_FIRST", 0.0)
    server.plan, server.delay = [Misbehave(status=503)], 0.2
    ask(judge(prices=(1e4, 1e4), concurrency=1), prompts(3))  # 13 tokens each
    assert re.search(r"echo \(m\): +33%.* 1/3 \[.*, \$0\.1300, 1 retried\]", capsys.readouterr().err)


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


def test_a_reply_is_charged_as_much_as_it_cost(server: JudgeServer, judge: MakeJudge) -> None:
    # At most $0.0002 and more a request are reserved, so two fit at a time; 13 tokens each are charged.
    limited = judge(prices=(1, 1), max_cost=0.0006, max_tokens=200, concurrency=1)
    assert ask(limited, prompts(10)) == words(10)
    assert len(server.requests) > 3


def test_what_is_refused_costs_nothing_and_what_breaks_off_counts_whole(server: JudgeServer, judge: MakeJudge) -> None:
    options = {"prices": (1, 1), "max_cost": 0.0006, "max_tokens": 200, "concurrency": 1}
    server.plan = [Misbehave(429, {"retry-after-ms": "1"})] * 6
    assert ask(judge(**options), prompts(1)) == words(1)
    server.plan = [Misbehave(drop=True)] * 6
    with pytest.raises(UserError, match="--judge-max-cost"):
        ask(judge(**options), prompts(2))
    assert len(server.requests) == 7 + 2


PROMPTS = [JudgePrompt("Judge.", "word " * length, label=f"sample {length}") for length in (3, 12, 1, 7, 20)]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_tiny_model(tmp_path / "model")


def local(model: Path, **options: object) -> Judge:
    fields = {"backend": "local", "model": str(model), "max_tokens": 6, "concurrency": 2, **options}
    judge = make_judge(JudgeOptions.model_validate({"cache": model.parent / "replies", **fields}))
    assert judge is not None
    return judge


def ask_local(judge: Judge, prompts: list[JudgePrompt] = PROMPTS) -> list[str | None]:
    return judge.ask(prompts, str, job="local", reminder="")


def by_transformers(prompt: JudgePrompt) -> str:
    tokenizer, model = tiny_tokenizer(), tiny_model()
    text = f"<|system|>{prompt.system}<|end|><|user|>{prompt.user}<|end|><|assistant|>"
    ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
    generated = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=False)
    decoded = tokenizer.decode(generated[0, ids.shape[1] :], skip_special_tokens=True)
    assert isinstance(decoded, str)
    return decoded


@pytest.mark.parametrize("concurrency", [1, 2, 5])
def test_batches_answer_as_each_prompt_alone_does(model: Path, concurrency: int) -> None:
    assert ask_local(local(model, concurrency=concurrency)) == [by_transformers(prompt) for prompt in PROMPTS]


def test_the_estimate_counts_and_a_second_run_loads_no_weights(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judge = local(model)
    estimate = judge.estimate(PROMPTS)
    first = ask_local(judge)
    assert f"5 requests (0 replies already cached), {judge.usage.prompt_tokens} prompt tokens (counted)" in estimate
    assert "at most 30 reply tokens" in estimate
    with monkeypatch.context() as patch:
        patch.setattr("d2e_sft.model.loading.load_model", lambda *_, **__: pytest.fail("loaded"))
        again = local(model)
        assert ask_local(again) == first
        assert again.usage.cached == len(PROMPTS)
    save_tiny_model(model, seed=1)
    other = local(model)
    ask_local(other)
    assert other.usage.asked == len(PROMPTS)


def test_replies_before_the_end_of_a_run_are_kept(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from d2e_sft.decoding.rows import PackedRows

    add, batches = PackedRows.add, []

    def breaks(rows: PackedRows, *args: Any) -> None:
        batches.append(args)
        if len(batches) == 2:
            raise KeyboardInterrupt
        add(rows, *args)

    monkeypatch.setattr(PackedRows, "add", breaks)
    with pytest.raises(KeyboardInterrupt):
        ask_local(local(model))
    monkeypatch.undo()
    again = local(model)
    ask_local(again)
    assert (again.usage.cached, again.usage.asked) == (2, 3)


def test_a_prompt_too_long_for_the_model_is_named(model: Path) -> None:
    long = JudgePrompt("Judge.", "word " * 300, label="sample 'x'")
    with pytest.raises(UserError, match=r"the prompt for sample 'x' has 1,\d+ tokens .* expected at most 1,024"):
        ask_local(local(model), [*PROMPTS, long])


def test_a_model_without_a_chat_template_is_refused(model: Path) -> None:
    tiny_t5_tokenizer().save_pretrained(model)
    (model / "chat_template.jinja").unlink(missing_ok=True)
    with pytest.raises(UserError, match="no chat template; expected an instruction-tuned model"):
        ask_local(local(model))


def test_replies_of_other_weights_with_the_same_size_and_times_are_not_taken(model: Path) -> None:
    ask_local(local(model))
    file, other = model / "model.safetensors", save_tiny_model(model.parent / "other", seed=5) / "model.safetensors"
    times = file.stat()
    assert other.stat().st_size == times.st_size
    file.write_bytes(other.read_bytes())
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert "(0 replies already cached)" in local(model).estimate(PROMPTS)


def test_a_model_that_does_not_exist_is_named_before_anything_else() -> None:
    with pytest.raises(UserError, match="no such folder"):
        make_judge(JudgeOptions(backend="local", model="./nowhere"))
