"""Fixtures for whatever asks a judge: a server, and judges that ask it, with waits of milliseconds.

A `conftest.py` imports them where they are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from d2e_sft.judge.judge import Judge, make_judge
from d2e_sft.judge.options import JudgeOptions
from tests.judge_server import JudgeServer

KEY = "sk-never-to-be-seen"
MakeJudge = Callable[..., Judge]


@pytest.fixture
def judge_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of the test's own, a key, and no proxy."""
    monkeypatch.setenv("D2E_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


@pytest.fixture
def server(judge_environment: None) -> Iterator[JudgeServer]:
    with JudgeServer() as running:
        yield running


@pytest.fixture
def judge(server: JudgeServer) -> MakeJudge:
    """Makes judges that ask the server."""

    def make(**options: Any) -> Judge:
        fields = {"backend": "openai", "model": "m", "base_url": server.url, "first_wait": 0.001, "timeout": 5}
        made = make_judge(JudgeOptions(**{**fields, **options}))
        assert made is not None
        return made

    return make
