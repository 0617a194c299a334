from pathlib import Path

import pytest

from tests.d2e_sft.hub.runs import make_run, write_scores
from tests.hub_server import hub

__all__ = ["hub"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = make_run(tmp_path)
    write_scores(run)
    return run
