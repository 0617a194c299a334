"""For all tests: none waits for the Hub, and where published data is.

A name that is not on disk must fail at once, as it does without a network.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Taken out of the environment, where builds of tests would find the published files in place of made-up ones.
_PUBLISHED = os.environ.pop("D2E_RAW", None)


@pytest.fixture(scope="session")
def published_raw() -> Path:
    """The folder with the published raw files; skips where there is none."""
    folder = Path(_PUBLISHED or Path(__file__).resolve().parents[2] / "shared" / "data")
    if not (folder / "tracie").is_dir():
        pytest.skip(f"no published raw files in {folder}; set D2E_RAW to a folder that has them")
    return folder
