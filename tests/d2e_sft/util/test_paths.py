"""Where things lie."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.util.paths import bundled, cache_dir


def test_the_cache_lies_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("D2E_CACHE", str(tmp_path))
    assert cache_dir() == tmp_path
    monkeypatch.delenv("D2E_CACHE")
    assert cache_dir() == Path.home() / ".cache" / "d2e-sft"


@pytest.mark.parametrize("folder", ["recipes", "launch"])
def test_what_travels_with_the_package_is_there(folder: str) -> None:
    assert list(bundled(folder).rglob("*.yaml"))
