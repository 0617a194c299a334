"""`d2e data build --judge openai` from end to end, over real HTTP."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

import pytest

from d2e_sft.data.sample import EventSample, read_samples
from data_builders.text.sentences import split_sentences
from tests.command import call, output_of, refusal_of, start
from tests.judge_server import KEY, JudgeServer, Misbehave


def _reply(user: str) -> str:
    """Keeps the first two sentences; finds every context supportive but the one about a clock."""
    if "Hypothesis:" in user and user.startswith("Omar"):
        return " ".join(split_sentences(user.split("\n", maxsplit=1)[0])[:2]) + "\nStatus: done"
    return f"I see.\nVerdict: {'unsupported' if 'four trees' in user else 'supported'}"


def _arguments(raw: Path, out: Path, url: str, *more: str) -> list[str]:
    return [
        *("build", "--datasets", "tracie", "--raw", str(raw), "--out", str(out)),
        *("--judge", "openai", "--judge-model", "m", "--judge-url", url, *more),
    ]


def _stories(raw: Path, count: int) -> None:
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
    rows = [
        f"event: Omar plants {word} trees starts before The rain comes down story: Omar plants {word} trees early. "
        "The rain comes down. Everyone goes home to dry.\tanswer: positive\n"
        for word in words[:count]
    ]
    (raw / "tracie/iid/tracie_train.txt").write_text("".join(rows))


def _train(out: Path) -> list[EventSample]:
    return read_samples(out / "train.parquet")


def test_one_model_filters_and_another_refines(raw: Path, tmp_path: Path, server: JudgeServer) -> None:
    _stories(raw, 6)
    server.reply = _reply
    more = ("--refine", "openai", "--refine-model", "other")
    asked = output_of("data", *_arguments(raw, tmp_path / "out", server.url, *more, "--estimate"))
    assert [line.split(":")[0] for line in asked.splitlines() if line[0] != " "] == ["quality", "refine"]
    assert not server.requests
    output_of("data", *_arguments(raw, tmp_path / "out", server.url, *more))
    assert [request["model"] for request in server.requests] == ["m"] * 6 + ["other"] * 5
    assert {sample.meta["refiner"] for sample in _train(tmp_path / "out")} == {"judge"}
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert (manifest["judge"]["model"], manifest["judge"]["jobs"]) == ("m", ["quality"])
    assert (manifest["refiner"]["model"], manifest["refiner"]["jobs"]) == ("other", ["refine"])
    card = (tmp_path / "out/README.md").read_text()
    assert "chosen by the language model other" in card
    assert "refine.by=openai refine.model=other" in card


def test_an_estimate_needs_no_key(raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    arguments = ["data", "build", "--datasets", "tracie", "--raw", raw, "--out", tmp_path / "out"]
    arguments += ["--judge", "openai", "--judge-model", "m"]
    assert "quality: " in output_of(*arguments, "--estimate")
    assert "OPENAI_API_KEY is not set" in refusal_of(*arguments)


def test_the_judge_refuses_and_refines_training_samples_alone(raw: Path, tmp_path: Path, server: JudgeServer) -> None:
    _stories(raw, 6)
    server.reply = _reply
    printed = output_of("data", *_arguments(raw, tmp_path / "out", server.url))
    samples = _train(tmp_path / "out")
    assert len(samples) == 5
    assert not any("four trees" in sample.context for sample in samples)
    for sample in samples:
        assert sample.refined_context == " ".join(split_sentences(sample.context)[:2])
        assert sample.meta["refiner"] == "judge"
    test = read_samples(tmp_path / "out" / "test.parquet")
    assert len(test) == 10
    assert not any("refiner" in sample.meta for sample in test)
    assert len(server.requests) == 6 + 5  # a verdict for each, a choice for each that stays
    assert "refined train: 5 judge" in printed
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["judge"]["model"] == "m"
    assert manifest["refining"] == {"train": {"judge": 5}}
    assert manifest["datasets"]["tracie"]["splits"]["train"]["filters"][-1]["rows_out"] == 5
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert call("data", *_arguments(raw, tmp_path / "again", server.url)).status == 0
    assert {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()} == before
    assert len(server.requests) == 11, "all replies are kept"
    assert KEY not in (tmp_path / "out" / "manifest.json").read_text()


def test_the_estimate_is_what_is_then_asked(raw: Path, tmp_path: Path, server: JudgeServer) -> None:
    _stories(raw, 6)
    server.reply = _reply
    flags = ["--judge-price", "2,10", "--estimate"]
    printed = output_of("data", *_arguments(raw, tmp_path / "out", server.url, *flags))
    assert re.search(r"quality: 6 requests \(0 replies already cached\), .* at most \$0\.\d+", printed)
    assert re.search(r"refine: 6 requests", printed)
    assert server.requests == []
    assert not (tmp_path / "out").exists()
    assert call("data", *_arguments(raw, tmp_path / "out", server.url)).status == 0
    again = call("data", *_arguments(raw, tmp_path / "out", server.url, *flags))
    assert "quality: 0 requests (6 replies already cached)" in again.out
    assert "refine: 1 requests (5 replies already cached)" in again.out  # the refused sample was never refined


def test_the_instruction_set_judges_no_more_than_it_draws(raw: Path, tmp_path: Path, server: JudgeServer) -> None:
    _stories(raw, 12)
    server.reply = _reply
    output_of(
        "data",
        *("build", "--suite", "piper-10k", "--size", "20", "--allow-shortfall", "--raw", str(raw)),
        *("--out", str(tmp_path / "out"), "--judge", "openai", "--judge-model", "m", "--judge-url", server.url),
        *("--judge-jobs", "quality"),
    )
    mixture = json.loads((tmp_path / "out" / "manifest.json").read_text())["mixture"]["datasets"]
    assert len(server.requests) == sum(entry["judged"] for entry in mixture.values())
    tracie = mixture["tracie"]
    assert tracie["candidates"] == 12
    assert tracie["drawn"] == tracie["verdicts"]["supported"]


def test_a_killed_build_resumes_and_pays_for_nothing_twice(raw: Path, tmp_path: Path, server: JudgeServer) -> None:
    _stories(raw, 12)
    server.reply, server.delay = _reply, 0.15
    arguments = _arguments(raw, tmp_path / "out", server.url, "--judge-concurrency", "1")
    process, printed = start(tmp_path, arguments, None, dict(os.environ), verb="data")
    while len(server.requests) < 5:
        assert process.is_alive(), printed.read_text()
        time.sleep(0.01)
    process.kill()
    process.join()
    assert not (tmp_path / "out").exists()
    server.delay = 0
    before = len(server.requests)
    assert call("data", *arguments).status == 0
    assert len(_train(tmp_path / "out")) == 11
    # Only the request that was under way when the process died may be asked again.
    assert len(server.requests) <= 12 + 11 + 1
    assert len(set(server.users[before:]) & set(server.users[: before - 1])) == 0


@pytest.mark.parametrize(("jobs", "job"), [("quality", "quality filter"), ("refine", "refine")])
def test_a_judge_whose_replies_are_all_unusable_is_an_error(
    raw: Path, tmp_path: Path, server: JudgeServer, jobs: str, job: str
) -> None:
    _stories(raw, 3)
    server.reply = lambda user: "Who knows."
    message = refusal_of("data", *_arguments(raw, tmp_path / "out", server.url, "--judge-jobs", jobs))
    assert f"{job}: none of the replies of" in message
    assert "about 3 samples is usable, such as 'Who knows.'" in " ".join(message.split())
    assert re.search(r"[36] undecided; ", message)  # what was paid for is reported
    assert not (tmp_path / "out").exists()


def test_a_judge_of_a_drawn_set_is_given_up_after_some_replies(raw: Path, tmp_path: Path, server: JudgeServer) -> None:
    _stories(raw, 12)
    server.reply = lambda user: "Who knows."
    message = refusal_of(
        *("data", "build", "--suite", "piper-10k", "--size", "400", "--allow-shortfall", "--raw", raw),
        *("--out", tmp_path / "out", "--judge", "openai", "--judge-model", "m", "--judge-url", server.url),
    )
    assert "quality filter: none of the replies of" in message


def test_a_failed_build_writes_nothing_and_reports_its_cost(raw: Path, tmp_path: Path, server: JudgeServer) -> None:
    _stories(raw, 4)
    server.reply = _reply
    server.plan = [None, None, Misbehave(status=403, body=b'{"error": {"message": "gone"}}')] + [None] * 9
    message = refusal_of("data", *_arguments(raw, tmp_path / "out", server.url, "--judge-concurrency", "1"))
    assert "answered 403: gone" in message
    assert "judge: 2 replies received" in message
    assert not (tmp_path / "out").exists()
