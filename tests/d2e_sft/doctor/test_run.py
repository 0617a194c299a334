"""`d2e doctor`: every topic is reported, and a check that breaks is a finding."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from d2e_sft.doctor import devices, run
from d2e_sft.doctor.finding import Finding

TOPICS = ["versions", "devices", "precision", "attention", "launchers", "storage", "network", "environment"]


def test_every_topic_is_reported_and_problems_have_a_remedy() -> None:
    found = list(run.findings())
    assert list(dict.fromkeys(finding.topic for finding in found)) == TOPICS
    for finding in found:
        assert finding.value
        assert bool(finding.remedy) == (finding.status != "ok"), finding
    assert not [finding for finding in found if finding.status == "fail"], "the tests run here"


def test_a_check_that_breaks_is_a_failure_and_the_others_still_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Iterator[Finding]:
        raise ImportError("libcudart.so.12: cannot open shared object file")

    monkeypatch.setattr(devices, "check_devices", broken)
    found = list(run.findings())
    assert list(dict.fromkeys(finding.topic for finding in found)) == TOPICS
    failed = [finding for finding in found if finding.status == "fail"]
    assert [finding.topic for finding in failed] == ["devices"]
    assert "libcudart.so.12" in failed[0].value
