"""Obtained against published counts."""

from __future__ import annotations

import re
from pathlib import Path

from d2e_sft.data.built import read_manifest
from data_builders.build.suites import SUITES
from tests.command import call, output_of
from tests.data_builders.reading import use_substitutes


def test_piper_compares_with_the_published_counts_and_says_why_they_differ(raw: Path, tmp_path: Path) -> None:
    result = call("data", "build", "--suite", "piper", "--raw", raw, "--out", tmp_path / "out", "cosmosqa.rule=word")
    unfolded = re.sub(r"\n {4,}", " ", result.out)  # a long reason stands below its row
    lines = {tuple(line.split()[:3]): line for line in unfolded.splitlines()}
    assert lines["temporal", "tracie", "nli"].split()[3:5] == ["2,039", "10"]
    assert "iid/tracie_test.txt differs from the published file" in lines["temporal", "tracie", "nli"]
    assert "option cosmosqa.rule=word (default substring)" in lines["causal", "cosmosqa", "scq"]
    assert "the paper's appendix A says 1,921" in lines["counterfactual", "cster", "qa"]
    rows = read_manifest(tmp_path / "out")["published_counts"]
    assert [row["published"] for row in rows] == [row.count for row in SUITES["piper"].published]


def test_rows_without_the_answer_in_their_context_are_counted_with_the_filter_and_without(
    raw: Path, tmp_path: Path
) -> None:
    splits = []
    for setting in ("true", "false"):
        settings = ("tempreason.max_words=none", f"tempreason.answer_in_context={setting}")
        output_of("data", "build", "--datasets", "tempreason", "--raw", raw, "--out", tmp_path / setting, *settings)
        splits.append(read_manifest(tmp_path / setting)["datasets"]["tempreason"]["splits"]["test"])
    (step,) = (step for step in splits[0]["filters"] if step["name"] == "answer in the context")
    assert (step["rows_in"], step["rows_out"], splits[0]["rows_written"]) == (2, 1, 1)
    assert (splits[1]["rows_written"], splits[1]["rows_with_answer_in_context"]) == (2, 1)


def test_a_substitute_is_named_as_the_reason(raw: Path, tmp_path: Path) -> None:
    use_substitutes(raw, "tempreason")
    result = call("data", "build", "--suite", "piper", "--raw", raw, "--out", tmp_path / "out")
    assert "test_l3.json is not here; event-event_839.jsonl is read: " in result.out
    files = read_manifest(tmp_path / "out")["datasets"]["tempreason"]["files"]
    assert [file["name"] for file in files] == ["event-event_839.jsonl"]
