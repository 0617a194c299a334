"""`d2e doctor`: every topic is reported, and what the command does with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from d2e_sft import cli
from d2e_sft.doctor import devices, run
from d2e_sft.doctor.finding import Finding

TOPICS = ["versions", "devices", "precision", "attention", "launchers", "storage", "network", "environment"]


def test_every_topic_is_reported_and_what_is_not_ok_has_a_remedy() -> None:
    found = list(run.findings())
    assert list(dict.fromkeys(finding.topic for finding in found)) == TOPICS
    for finding in found:
        assert finding.value
        assert bool(finding.remedy) == (finding.status != "ok"), finding
    assert not [finding for finding in found if finding.status == "fail"], "the tests themselves run here"


@pytest.mark.parametrize(("status", "code"), [("ok", 0), ("warn", 0), ("fail", 1)])
def test_only_a_failure_changes_the_exit_status(
    status: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    finding = Finding("disks", "cache", status, "full", "make room" if code else "")  # type: ignore[arg-type]
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
    monkeypatch.setattr(run, "findings", lambda: iter([Finding("a", "b", "warn", "c", "d")]))
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


def test_a_check_that_breaks_is_a_failure_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Iterator[Finding]:
        raise ImportError("libcudart.so.12: cannot open shared object file")

    monkeypatch.setattr(devices, "check_devices", broken)
    found = list(run.findings())
    assert list(dict.fromkeys(finding.topic for finding in found)) == TOPICS
    failed = [finding for finding in found if finding.status == "fail"]
    assert [finding.topic for finding in failed] == ["devices"]
    assert "libcudart.so.12" in failed[0].value
