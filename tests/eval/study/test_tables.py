"""A study in words: what is decided stands first, and each setting has its own reference."""

from __future__ import annotations

from typing import Any

from d2e_sft.util.table import Table
from eval.study.study import Study
from eval.study.tables import setting_table, settings, study_tables
from tests.eval.study.test_summary import study_rows

STUDY: dict[str, Any] = {
    "recipe": "r", "out": "o", "rows": "f", "build": "--datasets habit",
    "axes": {"seed": [0, 1, 2], "way": {"sft": {}, "slow": {}, "good": {}}, "strength": [0.5, 0.95]},
    "reference": {"way": "sft"},
}  # fmt: skip


def test_a_setting_is_compared_within_itself_and_says_what_is_decided() -> None:
    rows = [{**row, "strength": strength} for strength in (0.5, 0.95) for row in study_rows()]
    found = settings(Study.model_validate(STUDY), rows)
    assert [setting.name for setting in found] == ["strength 0.5", "strength 0.95"]
    text = study_tables(found, Table.markdown)
    assert "## Strength 0.95" in text
    lines = [line for line in text.splitlines() if line.startswith("- ")]
    assert lines[0].startswith("- good reads more than sft: conflict +")
    assert max(map(len, text.splitlines())) <= 120
    assert lines[1].startswith("- slow reads less than sft: conflict -")
    table = setting_table(found[0]).markdown().splitlines()
    assert table[2].startswith("| sft ")
    assert "reference" in table[2]
    assert all("without_context" not in line for line in table)
    assert max(map(len, table)) <= 120


def test_a_setting_without_its_reference_is_left_out() -> None:
    rows = [{**row, "strength": 0.5} for row in study_rows() if row["way"] != "sft"]
    assert settings(Study.model_validate(STUDY), rows) == []
