"""Where CREPE's official files are, for the tests that read them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[4]


@pytest.fixture(scope="session")
def official() -> Path:
    """The folder with the published files; skips where there is none."""
    folder = Path(os.environ.get("D2E_RAW") or REPOSITORY.parent / "shared" / "data") / "crepe"
    if not folder.is_dir():
        pytest.skip(f"no published files in {folder}; set D2E_RAW to a folder that has crepe/")
    return folder
