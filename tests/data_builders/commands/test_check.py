"""`d2e data check`: what it prints, and when it fails."""

from __future__ import annotations

import json
from pathlib import Path

from d2e_sft.data.sample import EventSample, write_samples
from data_builders.build.options import BuildOptions
from data_builders.build.run import build
from tests.command import call, output_of, refusal_of
from tests.data_builders.nli_rows import PASSAGE, own_row


def _file(path: Path, *samples: EventSample) -> Path:
    write_samples(samples, path)
    return path


def test_check_names_the_pairs_and_the_remedy(tmp_path: Path) -> None:
    train = _file(tmp_path / "train.jsonl", own_row("train", 1), own_row("train", 2, context=PASSAGE))
    test = _file(tmp_path / "bench.parquet", own_row("test", context=PASSAGE))
    message = refusal_of("data", "check", train, "--against", test, "--json", tmp_path / "out" / "overlap.json")
    assert "1 of 2 training rows overlap with the benchmark; expected none" in message
    assert "context: own-train-2 = own-test-1: The river rose in spring" in message
    assert "remedy: build the training set again with --against" in message
    written = json.loads((tmp_path / "out" / "overlap.json").read_text("utf-8"))
    assert written["overlapping_rows"] == 1
    assert [(pair["train_id"], pair["test_id"]) for pair in written["exact"]] == [("own-train-2", "own-test-1")]
    assert written["cells"][0]["test_set"] == "bench"


def test_check_passes_clean_sets_and_near_duplicates_unless_told(tmp_path: Path) -> None:
    train = _file(tmp_path / "train.jsonl", own_row("train", context=PASSAGE + " Nobody was hurt."))
    test = _file(tmp_path / "bench.jsonl", own_row("test", context=PASSAGE))
    printed = output_of("data", "check", train, "--against", test)
    assert "1 training rows: 0 overlap exactly, 1 have a near-duplicate" in printed
    assert "context 0.85: own-train-1 = own-test-1" in printed
    assert "1 of 1 training rows have a near-duplicate" in refusal_of(
        "data", "check", train, "--against", test, "--fail-on-near"
    )
    assert call("data", "check", train, "--against", test, "--fail-on-near", "--threshold", "0.9").status == 0


def test_check_of_a_build_compares_its_own_two_splits(raw: Path, tmp_path: Path) -> None:
    build(BuildOptions(["mctaco", "tracie"], tmp_path / "out", raw))
    printed = output_of("data", "check", tmp_path / "out")
    assert " 0 overlap exactly" in printed


def test_a_file_needs_a_benchmark_to_compare_with(tmp_path: Path) -> None:
    train = _file(tmp_path / "good.jsonl", own_row("train"))
    assert "good.jsonl: nothing to compare with" in refusal_of("data", "check", train)
    (tmp_path / "empty").mkdir()
    assert "a folder without test.parquet" in refusal_of("data", "check", train, "--against", tmp_path / "empty")
