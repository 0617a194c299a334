"""What the tests in this folder share: the judge and its server, and a tiny model with a benchmark."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command import forked
from tests.eval.benches import bench_rows, save_bench, train_rows
from tests.judge_server import judge, judge_environment, server
from tests.tiny import save_tiny_model

__all__ = ["judge", "judge_environment", "server", "world"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model and a benchmark with training rows."""
    folder = tmp_path_factory.mktemp("world")
    save_tiny_model(folder / "model", seed=3)
    save_bench(folder / "bench", bench_rows(), train_rows())
    return folder


@pytest.fixture
def quick_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep's steps in forked processes, which have the libraries loaded; others run as a user's do."""
    monkeypatch.setattr(
        "eval.sweep.process._run", lambda arguments, output, _, environment: forked(arguments, output, environment)
    )
