"""`d2e data`: what the user types and sees."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command import call, refusal_of

_DERIVED = {"train": "reconstruct_rl/train.json", "test": "raw/event_dataset_test.json"}


def test_build_prints_counts_and_filters(raw: Path, tmp_path: Path) -> None:
    result = call("data", "build", "--datasets", "ecare, mctaco", "--raw", raw, "--out", tmp_path / "out")
    assert result.status == 0, result.out
    lines = [line.split() for line in result.out.splitlines()]
    assert ["dataset", "split", "relation", "format", "rows"] in lines
    assert ["ecare", "test", "causal", "scq", "2"] in lines
    assert ["ecare", "train", "repeated", "rows", "3", "→", "2", "rows"] in lines
    assert "warning: ecare/train.jsonl: differs from the published file" in result.err


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        (
            "tempreason",
            ["Or add tempreason.test_file=event-event_839.jsonl, which reads TimeBench's 839 of the 4,426"],
        ),
        ("cqa", [f"Or add cqa.{split}_file={name}" for split, name in _DERIVED.items()]),
        ("matres", []),  # its substitutes have no address
    ],
)
def test_a_failed_download_names_the_option_that_reads_a_substitute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dataset: str, said: list[str]
) -> None:
    monkeypatch.setenv("D2E_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    message = " ".join(refusal_of("data", "build", "--datasets", dataset, "--out", tmp_path / "out").split())
    assert "cannot be downloaded (ConnectError" in message
    assert [text for text in said if text not in message] == []
    assert message.count("Or add") == len(said)


def test_build_prints_how_many_rows_of_each_subset_there_are(tmp_path: Path) -> None:
    settings = ["habit.strength=0.95", "habit.train_samples=40", "habit.test_samples=6"]
    result = call("data", "build", "--datasets", "habit", "--out", tmp_path, *settings)
    assert "subsets of habit train: 38 aligned, 2 conflict\n" in result.out
    assert "subsets of habit test: 6 aligned, 6 conflict\n" in result.out


def test_quiet_names_only_the_files(tmp_path: Path) -> None:
    settings = ["habit.train_samples=40", "habit.test_samples=6"]
    result = call("data", "build", "--datasets", "habit", "--out", tmp_path, *settings, "--quiet")
    assert result.status == 0, result.err
    assert all(line.startswith("wrote ") for line in result.out.splitlines())
    assert f"wrote {tmp_path / 'test.parquet'}" in result.out
