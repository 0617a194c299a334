"""Where CREPE's official files are, for the tests that read them."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def official(published_raw: Path) -> Path:
    """The folder with the published files; skips where there is none."""
    folder = published_raw / "crepe"
    if not folder.is_dir():
        pytest.skip(f"no published files in {folder}")
    return folder
