"""For all tests: no waiting for the Hub, the folder of published data, and a judge with its server."""

import gc
import os
from pathlib import Path

import pytest

from tests.judge_server import judge, judge_environment, server

__all__ = ["judge", "judge_environment", "server"]
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Removed from the environment, so that builds in tests use made-up files.
_PUBLISHED = os.environ.pop("D2E_RAW", None) or os.environ.get("PUBLISHED_RAW")
if _PUBLISHED:
    os.environ["PUBLISHED_RAW"] = _PUBLISHED  # for the workers of pytest-xdist, which start after this


# The slowest files (`--durations=60`) run first, so that no worker runs one after all others have ended.
_LONGEST = (
    "d2e_sft/distributed/test_engines.py",
    "d2e_sft/distributed/test_fsdp2_trainings.py",
    "d2e_sft/model/test_compilation.py",
    "data_builders/sources/test_promises.py",
    "d2e_sft/train/test_run.py",
    "eval/sweep/test_run.py",
    "d2e_sft/objective/test_attach.py",
    "d2e_sft/train/test_launch.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {Path(__file__).parent / name: place for place, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))


gc.disable()  # while tests are imported: it would find nothing


def pytest_collection_finish() -> None:
    gc.set_threshold(20_000, 20, 50)  # the default would scan all published rows again and again
    gc.enable()


@pytest.fixture(autouse=True, scope="module")
def _imports_are_no_garbage() -> None:
    """Exclude imported modules from garbage collection; every training collects, in 0.3 s with them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep messages on one line, since tests look for whole phrases; tests of the width undo it."""
    monkeypatch.setenv("COLUMNS", "10000")


@pytest.fixture(scope="session")
def published_raw() -> Path:
    """Return the folder with the published raw files; skip without one."""
    folder = Path(_PUBLISHED or Path(__file__).resolve().parents[2] / "shared" / "data")
    if not (folder / "tracie").is_dir():
        pytest.skip(f"no published raw files in {folder}; set D2E_RAW to a folder that has them")
    return folder


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama, training rows and a benchmark; a `conftest.py` or a module may define its own."""
    from tests.factories import make_world  # imports torch, which many tests do without

    return make_world(tmp_path_factory.mktemp("world"))
