"""A tiny model that takes long prompts, and the published files."""

from pathlib import Path

import pytest

from tests.tiny import save_tiny_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that takes prompts of some thousand bytes."""
    return save_tiny_model(tmp_path_factory.mktemp("model"), seed=3, positions=16_384)


@pytest.fixture(scope="session")
def crepe_raw(published_raw: Path) -> Path:
    """The folder with CREPE's published files; skips if there is none."""
    return _existing(published_raw / "crepe")


@pytest.fixture(scope="session")
def wiqa_raw(published_raw: Path) -> Path:
    """WIQA's published test file; skips if there is none."""
    return _existing(published_raw / "wiqa" / "test.jsonl")


def _existing(path: Path) -> Path:
    if not path.exists():
        pytest.skip(f"no {path}")
    return path
