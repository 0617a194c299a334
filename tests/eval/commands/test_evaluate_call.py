"""`d2e eval --judge`: asks about free answers, without decoding anything again; what it cannot judge is refused."""

from __future__ import annotations

import json
from pathlib import Path

from d2e_sft.data.sample import write_samples
from tests.chat_samples import chat_sample
from tests.command import call, output_of, refusal_of
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


def test_rows_in_a_folder_called_like_a_system_are_refused(tmp_path: Path, world: Path) -> None:
    write_samples([chat_sample(id="c", split="test")], tmp_path / "wiqa" / "test.jsonl")
    message = refusal_of("eval", world / "model", "--bench", tmp_path / "wiqa", "--out", tmp_path / "run")
    assert "rows in a folder called wiqa, whose results would share" in " ".join(message.split())
    assert not (tmp_path / "run").exists()
