"""αNLI: which raw rows become which samples."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from tests.data_builders.reading import read, replace


def test_alphanli_shows_the_observations_in_the_context_only(raw: Path) -> None:
    (sample,) = read(raw, "alphanli")["test"].rows
    assert sample.context == "First observation: Ann ran.\nSecond observation: Ann fell."
    assert "Ann" not in sample.question
    assert sample.answers == ["She slipped."]


def test_alphanli_refuses_two_equal_hypotheses(raw: Path) -> None:
    replace(raw / "ood/alphanli/dev.jsonl", "She slept.", "She slipped.")
    with pytest.raises(UserError, match=r"dev\.jsonl, line 1: hyp2: got 'She slipped\.'; expected a hypothesis"):
        read(raw, "alphanli")
