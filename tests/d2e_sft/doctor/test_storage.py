"""Folders that are not writable, and disks that are full."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from d2e_sft.doctor import storage
from tests.d2e_sft.doctor.conftest import named


def test_a_cache_that_cannot_be_written_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("D2E_CACHE", str(tmp_path / "file" / "cache"))
    cache = named(storage.check_storage(), "cache")
    assert cache.status == "fail"
    assert "not writable" in cache.value
    assert cache.remedy.startswith("set D2E_CACHE")


def test_a_cache_that_does_not_exist_yet_is_left_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("D2E_CACHE", str(tmp_path / "new" / "cache"))
    assert named(storage.check_storage(), "cache").status in ("ok", "warn")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("free", "status"), [(100 * 2**30, "ok"), (5 * 2**30, "warn"), (2**20, "fail")])
def test_disks_need_room(free: int, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    assert named(storage.check_storage(), "working folder").status == status
