"""Addresses of published files, and the account of what filters leave out."""

from __future__ import annotations

from data_builders.raw.source import Release, SplitRows, github


def test_files_are_addressed_at_their_commit_in_their_folder_or_archive() -> None:
    file = github("owner/name", "abc123", "data/v2").file("train.json", "ff" * 32, 7)
    assert file.url == "https://raw.githubusercontent.com/owner/name/abc123/data/v2/train.json"
    assert (file.name, file.commit, file.sha256, file.bytes, file.member) == ("train.json", "abc123", "ff" * 32, 7, "")
    root = github("owner/name", "abc123").file("a.json")
    assert root.url == "https://raw.githubusercontent.com/owner/name/abc123/a.json"
    packed = Release("https://example.org/v1", "v1").file("dev.jsonl", path="all.zip", member="all/dev.jsonl")
    assert (packed.url, packed.member) == ("https://example.org/v1/all.zip", "all/dev.jsonl")


def test_each_filter_counts_what_the_one_before_it_left() -> None:
    rows = SplitRows([1, 2, 3, 4, 5])
    rows.keep("odd", "even numbers are left out", [1, 3, 5])
    rows.keep("small", "large numbers are left out", [1, 3], unit="numbers")
    assert [(step.name, step.rows_in, step.rows_out, step.unit) for step in rows.filters] == [
        ("odd", 5, 3, "rows"),
        ("small", 3, 2, "numbers"),
    ]
    assert rows.rows_read == 5


def test_what_rows_become_keeps_their_account() -> None:
    rows = SplitRows([1, 2, 3], rows_read=9)
    rows.keep("odd", "even numbers are left out", [1, 3])
    texts = rows.become(["one", "three"])
    assert (list(texts.rows), texts.rows_read, texts.filters) == (["one", "three"], 9, rows.filters)
