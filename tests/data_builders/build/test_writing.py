"""A build is written as a whole, or not at all."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from d2e_sft.util.files import write_whole
from tests.command import Kill, call, finish, refusal_of, start


def _tree(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("kind", ["file", "in a file", "read-only"])
def test_a_target_that_cannot_be_written_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    (tmp_path / "file").write_text("")
    out = {"file": tmp_path / "file", "in a file": tmp_path / "file" / "out", "read-only": tmp_path}[kind]
    if kind == "read-only":  # the tests may run as a user whom no permission stops
        monkeypatch.setattr("os.access", lambda _, mode: mode == os.R_OK)
    message = refusal_of("data", "build", "--datasets", "no-such-dataset", "--out", out)
    assert "is a file; expected a folder" in message or "cannot be written; expected a folder" in message
    assert "--out" in message


def test_a_build_that_fails_while_writing_leaves_the_earlier_one_as_it_was(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    assert call("data", "build", "--datasets", "tracie", "--raw", raw, "--out", out).status == 0
    before = _tree(out)

    def disk_full(*_: object) -> None:
        raise OSError(28, "No space left on device", "manifest.json")

    monkeypatch.setattr("data_builders.build.writing.write_json", disk_full)
    message = refusal_of(
        "data", "build", "--datasets", "tracie", "--raw", raw, "--out", out, "--seed", "5", "--overwrite"
    )
    assert "manifest.json: cannot be written (No space left on device)" in message
    assert _tree(out) == before


def test_the_next_build_removes_what_a_killed_one_left(raw: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ("build", "--datasets", "tracie", "--raw", raw, "--out", out)
    killed = Kill("data_builders.build.writing:render_card")
    assert finish(start(tmp_path, arguments, killed, verb="data")).status == -signal.SIGKILL
    assert [path.name[:7] for path in out.iterdir()] == [".build-"]
    own = out / ".build-notes" / "mine.txt"
    write_whole(own, "not of a build")
    assert call("data", *arguments).status == 0
    assert sorted(path.name for path in out.glob(".*")) == [".build-notes"]
    assert own.read_text() == "not of a build"
