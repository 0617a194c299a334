"""The locks of folders: one process at a time, and nothing left of a killed one."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from d2e_sft.util.errors import UserError
from d2e_sft.util.locks import LOCK_FILE, file_lock, temporary_folder


def _hold(folder: Path, ready: Any) -> None:
    with file_lock(folder, "another one", "wait"):
        ready.set()
        signal.pause()


def test_the_second_is_refused_with_the_process_and_a_killed_one_leaves_no_lock(tmp_path: Path) -> None:
    forks = multiprocessing.get_context("fork")
    ready = forks.Event()
    process = forks.Process(target=_hold, args=(tmp_path / "run", ready))
    process.start()
    assert ready.wait(30)
    second = file_lock(tmp_path / "run", "another one", "wait")
    with pytest.raises(UserError, match=rf"another one is at work there \(process {process.pid} on "):
        second.__enter__()
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join()
    assert (tmp_path / "run" / LOCK_FILE).exists(), "its file is no lock"
    with file_lock(tmp_path / "run", "another one", "wait"):
        pass
    assert not (tmp_path / "run" / LOCK_FILE).exists()


def test_folders_that_stay_empty_go_and_others_stay(tmp_path: Path) -> None:
    with file_lock(tmp_path / "a" / "b", "another", "wait"):
        pass
    assert not (tmp_path / "a").exists()
    with file_lock(tmp_path / "a" / "b", "another", "wait"):
        (tmp_path / "a" / "b" / "result").touch()
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["result"]


def _work(parent: Path, ready: Any) -> None:
    with temporary_folder(parent, ".work-") as folder:
        (folder / "half").touch()
        ready.set()
        signal.pause()


def test_a_temporary_folder_is_removed_only_once_its_process_was_killed(tmp_path: Path) -> None:
    forks = multiprocessing.get_context("fork")
    ready = forks.Event()
    process = forks.Process(target=_work, args=(tmp_path / "out", ready))
    process.start()
    assert ready.wait(30)
    [used] = (tmp_path / "out").iterdir()
    with temporary_folder(tmp_path / "out", ".work-") as own:
        assert {*(tmp_path / "out").iterdir()} == {used, own}, "the other process is at work in its own"
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join()
    assert [*(tmp_path / "out").iterdir()] == [used]
    (tmp_path / "out" / ".work-link").symlink_to(tmp_path)
    with temporary_folder(tmp_path / "out", ".work-", is_leftover=lambda folder: False):
        assert used.is_dir()
    with temporary_folder(tmp_path / "out", ".work-"):
        assert not used.exists()
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".work-link"], "a link is not followed"
    assert tmp_path.is_dir()


def test_temporary_folders_need_no_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    (tmp_path / ".work-other").mkdir()
    with temporary_folder(tmp_path, ".work-") as own:
        (own / "half").touch()
    assert [path.name for path in tmp_path.iterdir()] == [".work-other"], "it may be in use"
