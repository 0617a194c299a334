"""Checks of `d2e doctor` without network."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from d2e_sft.doctor.finding import Finding


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("SLURM_JOB_ID", "MLFLOW_TRACKING_URI", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


def named(found: Iterator[Finding] | list[Finding], name: str) -> Finding:
    return next(finding for finding in found if finding.name == name)
