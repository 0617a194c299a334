"""`d2e demo`: its address and what keeps it from being served."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from d2e_sft.server import start
from tests.command import output_of, refusal_of
from tests.tiny import save_tiny_model


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "tiny")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        error = refusal_of("demo", tmp_path / "tiny", "--port", port)
    assert f"--port {port}: cannot listen there" in error
    assert "choose another --port" in error


def test_the_address_and_the_ratio_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def run(app: Any, sock: socket.socket, message: str) -> None:
        said.append(message.replace(start.address(sock), "HERE"))

    monkeypatch.setattr("eval.pages.demo.page.run", run)
    save_tiny_model(tmp_path / "tiny")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    output_of("demo", tmp_path / "tiny", "--port", port, "--alpha", "0.3", "--max-new-tokens", 4, "--dtype", "auto")
    assert said == ["open http://HERE/ (α = 0.3; ctrl-C ends it)"]


def test_without_its_packages_the_remedy_is_their_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "find_spec", lambda name: None)
    assert "pip install 'd2e-sft[demo]'" in refusal_of("demo", "someone/name")
