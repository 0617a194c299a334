"""`import d2e_sft`: what is used from Python is there by name, and costs nothing until then."""

from __future__ import annotations

import subprocess
import sys

import pytest

import d2e_sft


def test_the_package_imports_nothing_heavy() -> None:
    heavy = ("torch", "transformers", "pydantic", "yaml", "datasets")
    code = f"import d2e_sft, sys; dir(d2e_sft); print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_every_name_is_where_it_is_said_to_be() -> None:
    assert {"D2ETrainer", "D2EConfig", "load_model", "generate_debiased", "EventSample"} <= set(d2e_sft.__all__)
    for name in d2e_sft.__all__:
        assert getattr(d2e_sft, name).__name__ == name
        assert name in dir(d2e_sft)
    with pytest.raises(AttributeError, match="no attribute 'D3ETrainer'"):
        d2e_sft.D3ETrainer  # noqa: B018
