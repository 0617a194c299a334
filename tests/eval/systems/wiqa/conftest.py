"""Where WIQA's official file is, for the tests that read it."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def official(published_raw: Path) -> Path:
    """The published test file; skips where there is none."""
    path = published_raw / "wiqa" / "test.jsonl"
    if not path.is_file():
        pytest.skip(f"no {path}")
    return path
