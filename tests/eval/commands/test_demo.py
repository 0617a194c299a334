"""`d2e demo`: its address and what keeps it from being served."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from tests.command import output_of, refusal_of
from tests.servers import free_port
from tests.tiny import save_tiny_model


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    pytest.importorskip("gradio")
    save_tiny_model(tmp_path / "tiny")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        error = refusal_of("demo", tmp_path / "tiny", "--port", port)
    assert f"--port {port}: cannot listen there" in error
    assert "choose another --port" in error


def test_the_address_is_said_and_the_options_reach_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gradio = pytest.importorskip("gradio")
    launched: dict[str, Any] = {}
    real = gradio.Blocks.launch

    def launch(page: Any, **options: Any) -> Any:
        launched.update(options)
        return real(page, **options)

    monkeypatch.setattr(gradio.Blocks, "launch", launch)
    monkeypatch.setattr(gradio.Blocks, "block_thread", lambda page: page.close())
    save_tiny_model(tmp_path / "tiny")
    port = free_port()
    printed = output_of("demo", tmp_path / "tiny", "--port", port, "--alpha", "0.3")
    assert f"open http://127.0.0.1:{port}/ (α = 0.3; ctrl-C ends it)" in printed
    assert launched["share"] is False
