"""A dataset that cannot be read does not take the others with it."""

from __future__ import annotations

from pathlib import Path

from d2e_sft.data.built import read_manifest
from d2e_sft.data.sample import read_samples
from tests.command import call, refusal_of


def test_a_damaged_file_costs_its_own_dataset_only(raw: Path, tmp_path: Path) -> None:
    (raw / "wiqa/test.jsonl").write_text("<!DOCTYPE html><html>Not found</html>")
    message = refusal_of("data", "build", "--suite", "piper", "--raw", raw, "--out", tmp_path / "out")
    assert "wiqa/test.jsonl: holds a web page (HTML), not data" in message
    assert "the result is incomplete: it lacks wiqa" in message
    samples = read_samples(tmp_path / "out" / "test.parquet")
    assert {"tracie", "cosmosqa", "ifqa"} <= {sample.dataset for sample in samples}
    failures = read_manifest(tmp_path / "out")["failures"]
    assert list(failures) == ["wiqa"]
    assert failures["wiqa"].startswith("wiqa/test.jsonl: holds a web page (HTML), not data")


def test_a_missing_file_costs_its_own_split_only(raw: Path, tmp_path: Path) -> None:
    (raw / "wiqa/train.jsonl").unlink()
    (raw / "ecare/train.jsonl").write_text("")
    out = tmp_path / "out"
    message = refusal_of("data", "build", "--datasets", "wiqa,ecare,tracie", "--raw", raw, "--out", out)
    assert "wiqa/train.jsonl: no such file" in message
    assert "ecare/train.jsonl: the file is empty" in message
    assert "it lacks ecare train, wiqa train" in message
    assert {sample.dataset for sample in read_samples(out / "test.parquet")} == {"wiqa", "ecare", "tracie"}
    assert {sample.dataset for sample in read_samples(out / "train.parquet")} == {"tracie"}
    assert set(read_manifest(out)["failures"]) == {"ecare train", "wiqa train"}


def test_bad_rows_of_a_file_that_two_splits_need_are_counted_once(raw: Path, tmp_path: Path) -> None:
    with (raw / "ecare/dev_full.jsonl").open("a") as file:
        file.write("{}\n")
    (raw / "ecare/train.jsonl").unlink()
    out = tmp_path / "out"
    result = call("data", "build", "--datasets", "ecare,tracie", "--skip-bad", "--raw", raw, "--out", out)
    assert "bad rows put aside: 1" in result.out
    assert "bad_rows.jsonl" in result.out
    assert len((out / "bad_rows.jsonl").read_text().splitlines()) == 1
