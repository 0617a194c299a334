"""Versions are those that are installed and asked for."""

from __future__ import annotations

from importlib import metadata

import pytest

from d2e_sft.doctor import versions
from tests.d2e_sft.doctor.conftest import named


def test_versions_are_those_that_are_installed_and_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"torch": "2.1.0", "transformers": "99.0", "wandb": "1.0"}

    def version(name: str) -> str:
        if name in installed:
            return installed[name]
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    wanted = ["torch>=2.9", "transformers>=5.19", "deepspeed>=0.18; extra == 'train-gpu'"]
    monkeypatch.setattr(metadata, "requires", lambda name: wanted)
    found = list(versions.check_versions())
    assert (named(found, "torch").status, named(found, "torch").value) == ("warn", "2.1.0; expected >=2.9")
    assert named(found, "transformers").status == "ok"
    assert named(found, "peft").status == "fail"
    assert named(found, "deepspeed").status == "warn"
    assert "d2e-sft[train-gpu]" in named(found, "deepspeed").remedy
    assert named(found, "flash-attn").status == "ok", "nothing of d2e's needs it"
