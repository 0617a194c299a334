"""`d2e eval --judge`: asks about free answers, without decoding anything again; what it cannot judge is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from d2e_sft.data.sample import write_samples
from tests.chat_samples import chat_sample
from tests.command import call, output_of, refusal_of
from tests.factories import bench_row, save_bench
from tests.judge_server import JudgeServer

GIVEN = ("--judge", "openai", "--judge-model", "m")


def test_finished_results_are_judged_without_decoding(tmp_path: Path, world: Path, server: JudgeServer) -> None:
    rows = [chat_sample(id=f"c{n}", split="test", answers=["The receipt."]) for n in range(3)]
    write_samples(rows, tmp_path / "bench" / "test.jsonl")
    common = ("--bench", tmp_path / "bench" / "test.jsonl", "--out", tmp_path / "run", "--max-new-tokens", 4)
    server.reply = lambda user: "It says so.\nVerdict: unsupported, correct"
    output_of("eval", world / "model", *common)
    printed = call("eval", world / "model", *common, *GIVEN, "--judge-url", server.url)
    assert "decoded before, and only scored again" in printed.err
    assert "chats (3) run 0.0 [0.0, 70.8] 100.0 [29.2, 100.0]" in " ".join(printed.out.split())
    (file,) = (tmp_path / "run" / "eval").glob("*/judged_answers.json")
    assert str(file) in printed.out
    judged = json.loads(file.read_text())
    assert judged["judge"] == {"backend": "openai", "model": "m"}
    assert [one["verdict"]["reason"] for one in judged["answers"]] == ["It says so."] * 3


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ((), "has no row of format qa or chat with a context, and a judge reads free"),
        (("--without-context",), "--judge with --without-context: a judge reads answers that were generated from"),
        (("--answer", "likelihood"), "--judge with --answer likelihood: "),
        (("--launch", "ddp", "--processes", "2"), "--judge with --launch ddp: one process asks a judge"),
        (("--judge-dtype", "float32"), "not supported by --judge openai"),
    ],
)
def test_what_leaves_nothing_to_judge_is_refused_before_a_model_is_loaded(
    more: tuple[str, ...], said: str, tmp_path: Path, server: JudgeServer
) -> None:
    save_bench(tmp_path / "bench", [bench_row(n) for n in (1, 3)])
    common = ("--bench", tmp_path / "bench", "--out", tmp_path / "run", *GIVEN, "--judge-url", server.url)
    assert said in refusal_of("eval", "no/model", *common, *more)
    assert not (tmp_path / "run").exists()
    error = refusal_of("eval", "no/model", "--bench", "wiqa", *GIVEN, "--judge-url", server.url)
    assert "--judge with --bench wiqa" in error
