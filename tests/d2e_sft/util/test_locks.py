"""The lock of a folder: one at a time, and nothing left of it."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from d2e_sft.util.errors import UserError
from d2e_sft.util.locks import LOCK_FILE, only_one


def _hold(folder: Path, ready: Any) -> None:
    with only_one(folder, "another one", "wait"):
        ready.set()
        signal.pause()


def test_the_second_is_refused_with_the_process_and_a_killed_one_leaves_no_lock(tmp_path: Path) -> None:
    forks = multiprocessing.get_context("fork")
    ready = forks.Event()
    process = forks.Process(target=_hold, args=(tmp_path / "run", ready))
    process.start()
    assert ready.wait(30)
    second = only_one(tmp_path / "run", "another one", "wait")
    with pytest.raises(UserError, match=rf"another one is at work there \(process {process.pid} on "):
        second.__enter__()
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join()
    assert (tmp_path / "run" / LOCK_FILE).exists(), "its file is no lock"
    with only_one(tmp_path / "run", "another one", "wait"):
        pass
    assert not (tmp_path / "run" / LOCK_FILE).exists()


def test_folders_that_stay_empty_go_and_others_stay(tmp_path: Path) -> None:
    with only_one(tmp_path / "a" / "b", "another", "wait"):
        pass
    assert not (tmp_path / "a").exists()
    with only_one(tmp_path / "a" / "b", "another", "wait"):
        (tmp_path / "a" / "b" / "result").touch()
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["result"]
