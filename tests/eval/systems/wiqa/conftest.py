"""Where WIQA's official file is, for the tests that read it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[4]


@pytest.fixture(scope="session")
def official() -> Path:
    """The published test file; skips where there is none."""
    path = Path(os.environ.get("D2E_RAW") or REPOSITORY.parent / "shared" / "data") / "wiqa" / "test.jsonl"
    if not path.is_file():
        pytest.skip(f"no {path}; set D2E_RAW to a folder that has wiqa/test.jsonl")
    return path
