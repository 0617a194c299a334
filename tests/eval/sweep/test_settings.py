"""A probe in words: decided ways first, and each setting has its own reference."""

from __future__ import annotations

from eval.sweep.settings import setting_table, settings, verdicts
from tests.eval.fake_sweeps import probed_rows, probed_settings


def test_a_setting_is_compared_within_itself() -> None:
    found = probed_settings()
    assert [setting.name for setting in found] == ["strength 0.5", "strength 0.95"]
    lines = verdicts(found[1])
    assert lines[0].startswith("good is better than sft: conflict +")
    assert lines[1].startswith("slow is worse than sft: conflict -")
    table = setting_table(found[0])
    assert list(table.frame["way"]) == ["sft", "slow", "good"], "answers without context are not compared"
    assert list(table.frame["verdict"]) == ["reference", "worse", "better"]


def test_a_setting_without_its_reference_is_left_out() -> None:
    rows = [row for row in probed_rows(strength=0.5) if row["way"] != "sft"]
    assert settings(["seed", "way", "strength"], {"way": "sft"}, rows) == []
