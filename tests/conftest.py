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


# The files that take longest (`--durations=60`). They begin, so that no worker is left with one when the others end.
_LONGEST = (
    "eval/sweep/test_run.py",
    "d2e_sft/train/dry_run/test_memory.py",
    "d2e_sft/distributed/test_engines.py",
    "attack/test_attacks.py",
    "eval/study/test_run.py",
    "d2e_sft/train/test_run.py",
    "d2e_sft/train/test_launch.py",
    "d2e_sft/train/test_callbacks.py",
    "d2e_sft/model/test_compilation.py",
    "test_end_to_end.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {Path(__file__).parent / name: place for place, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages are folded at the terminal's width, and tests look for whole phrases; tests of the width undo it."""
    monkeypatch.setenv("COLUMNS", "10000")


@pytest.fixture(scope="session")
def published_raw() -> Path:
    """The folder with the published raw files; skips where there is none."""
    folder = Path(_PUBLISHED or Path(__file__).resolve().parents[2] / "shared" / "data")
    if not (folder / "tracie").is_dir():
        pytest.skip(f"no published raw files in {folder}; set D2E_RAW to a folder that has them")
    return folder


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama, training rows and a benchmark; a `conftest.py` or a module may define its own."""
    from tests.factories import make_world  # imports torch, which many tests do without

    return make_world(tmp_path_factory.mktemp("world"))
