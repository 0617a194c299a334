"""`d2e data stats`: what it prints and writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from d2e_sft.data.sample import write_samples
from data_builders.quality.stats import render_stats
from tests.command import output_of, refusal_of
from tests.data_builders.nli_rows import nli, stats_in_words


def test_the_command_prints_and_writes_the_same_numbers(built: Path, tmp_path: Path) -> None:
    html, numbers = tmp_path / "a/stats.html", tmp_path / "b/stats.json"
    printed = output_of("data", "stats", built, "--tokenizer", "words", "--html", html, "--json", numbers)
    written = json.loads(numbers.read_text("utf-8"))
    assert written == stats_in_words(built)
    lines = [line.split() for line in printed.splitlines()]
    for group in written["groups"]:
        for kind in group["counts"]:
            assert [group["dataset"], group["split"], kind["relation"], kind["format"], str(kind["rows"])] in lines
    assert html.read_text("utf-8") == render_stats(stats_in_words(built))


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--tokenizer", "builtin:other", "model 'builtin:other': no such builtin"),
        ("--tokenizer", "./nowhere", "model './nowhere': no such folder"),
        ("--tokenizer", "nobody/nothing", "model 'nobody/nothing': HF_HUB_OFFLINE is set"),
        ("--prompt-set", "other", "prompt set 'other': not found"),
    ],
)
def test_an_unknown_tokenizer_or_prompt_set_is_one_message(
    tmp_path: Path, option: str, value: str, message: str
) -> None:
    write_samples([nli(1, "It rained.", "It was wet.", "positive")], tmp_path / "good.jsonl")
    assert message in refusal_of("data", "stats", tmp_path / "good.jsonl", option, value)
