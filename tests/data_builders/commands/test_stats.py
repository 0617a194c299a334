"""`d2e data stats`: what it prints and writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from d2e_sft.data.sample import write_samples
from data_builders.quality.stats_page import render_page
from tests.command import call, refusal_of
from tests.data_builders.nli_rows import nli, stats_in_words


def test_the_command_prints_and_writes_the_same_numbers(built: Path, tmp_path: Path) -> None:
    html, numbers = tmp_path / "a/stats.html", tmp_path / "b/stats.json"
    result = call("data", "stats", built, "--tokenizer", "words", "--html", html, "--json", numbers)
    assert result.status == 0, result.out
    written = json.loads(numbers.read_text("utf-8"))
    assert written == stats_in_words(built).to_json()
    lines = [line.split() for line in result.out.splitlines()]
    for group in written["groups"]:
        for kind in group["counts"]:
            assert [group["dataset"], group["split"], kind["relation"], kind["format"], str(kind["rows"])] in lines
    assert html.read_text("utf-8") == render_page(stats_in_words(built))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("missing.parquet", (), "missing.parquet: no such file"),
        ("broken.parquet", (), "broken.parquet: not a readable Parquet file"),
        ("empty.jsonl", (), "empty.jsonl: no usable row"),
        ("folder", (), "folder: a folder without train.parquet or dev.parquet or test.parquet"),
        ("good.jsonl", ("--tokenizer", "builtin:other"), "model 'builtin:other': no such builtin"),
        ("good.jsonl", ("--tokenizer", "./nowhere"), "model './nowhere': no such folder"),
        ("good.jsonl", ("--tokenizer", "nobody/nothing"), "model 'nobody/nothing': cannot be loaded"),
        ("good.jsonl", ("--prompt-set", "other"), "prompt set 'other': not found"),
    ],
)
def test_bad_input_is_one_message(tmp_path: Path, name: str, options: Sequence[str], message: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "broken.parquet").write_text("no")
    (tmp_path / "empty.jsonl").touch()
    write_samples([nli(1, "It rained.", "It was wet.", "positive")], tmp_path / "good.jsonl")
    assert message in refusal_of("data", "stats", tmp_path / name, *options)
