"""The table of attacks."""

from __future__ import annotations

from pathlib import Path

from tests.attack.frame import Outcome, save, table


def test_new_outcomes_replace_those_of_the_same_attack(tmp_path: Path) -> None:
    page, results = tmp_path / "page.md", tmp_path / "attack.json"
    page.write_text("before\n<!-- attacks: written by make attack -->of before<!-- end of attacks -->\nafter\n")
    skipped = Outcome("skip", "frame", "nothing", skipped="no such disk")
    save([Outcome("odd", "frame", "nothing", tried=8, survived=6, failed=2), skipped], results, page)
    save([Outcome("odd", "frame", "nothing", tried=3, survived=3)], results, page)
    text = page.read_text()
    assert "| odd | frame | nothing | 3 | 3 | 0 |" in text
    assert "not tried: no such disk" in text
    assert "of before" not in text
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert len(table([]).splitlines()) == 2
