"""`d2e doctor`: its exit status, its lines and its JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from d2e_sft import cli
from d2e_sft.doctor import run
from d2e_sft.doctor.finding import Finding


@pytest.mark.parametrize(("status", "code"), [("ok", 0), ("warn", 0), ("fail", 1)])
def test_only_a_failure_changes_the_exit_status(
    status: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    finding = Finding("cache", status, "full", "make room" if code else "", "disks")  # type: ignore[arg-type]
    monkeypatch.setattr(run, "findings", lambda: iter([finding]))
    with pytest.raises(SystemExit) as stop:
        cli.main(["doctor"])
    assert stop.value.code == code
    printed = capsys.readouterr().out
    assert f"  {status:<5} cache            full" in printed
    assert ("remedy: make room" in printed) is bool(code)
    assert f"{int(status == 'ok')} ok" in printed


def test_json_is_printed_alone_or_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "findings", lambda: iter([Finding("b", "warn", "c", "d", "a")]))
    expected = {
        "summary": {"warn": 1},
        "findings": [{"topic": "a", "name": "b", "status": "warn", "value": "c", "remedy": "d"}],
    }
    with pytest.raises(SystemExit):
        cli.main(["doctor", "--json", "-"])
    assert json.loads(capsys.readouterr().out) == expected
    with pytest.raises(SystemExit):
        cli.main(["doctor", "--json", str(tmp_path / "found.json")])
    assert json.loads((tmp_path / "found.json").read_text()) == expected
    assert "no failures" in capsys.readouterr().out
