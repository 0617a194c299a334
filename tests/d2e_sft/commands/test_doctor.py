"""`d2e doctor`: its exit status, its lines and its JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from d2e_sft.doctor import run
from d2e_sft.doctor.finding import Finding
from tests.command import call, output_of


@pytest.mark.parametrize(("status", "code"), [("ok", 0), ("warn", 0), ("fail", 1)])
def test_only_a_failure_changes_the_exit_status(status: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    finding = Finding("cache", status, "full", "make room" if code else "", "disks")  # type: ignore[arg-type]
    monkeypatch.setattr(run, "findings", lambda: iter([finding]))
    called = call("doctor")
    assert called.status == code
    assert f"  {status:<5} cache            full" in called.out
    assert ("remedy: make room" in called.out) is bool(code)
    assert f"{int(status == 'ok')} ok" in called.out


def test_json_is_printed_alone_or_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "findings", lambda: iter([Finding("b", "warn", "c", "d", "a")]))
    expected = {
        "summary": {"warn": 1},
        "findings": [{"topic": "a", "name": "b", "status": "warn", "value": "c", "remedy": "d"}],
    }
    assert json.loads(output_of("doctor", "--json", "-")) == expected
    assert "no failures" in output_of("doctor", "--json", tmp_path / "found.json")
    assert json.loads((tmp_path / "found.json").read_text()) == expected
