"""`make bench` replaces the table of the performance page as a whole, and only by a whole measurement."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from d2e_sft.bench.harness import Report
from d2e_sft.bench.table import CASES, FILE, table_of
from d2e_sft.util.errors import UserError
from tests.docs.test_pictures import script

FACTS: dict[str, Any] = {"machine": "2 cores", "threads": 2, "model": "m", "versions": {"torch": "2"}}


def row(part: str, seconds: float) -> dict[str, Any]:
    cost = {"clock_s": seconds, "cpu_s": seconds, "peak_mb": 7.0}
    return {"task": f"a {part}", "ours": cost, "peer": "a loop", "theirs": cost, "ratio": 1.0, "same": None, "why": ""}


def save(folder: Path, parts: list[str], seconds: float) -> Path:
    report = Report(FACTS, "2026-01-02", {part: [row(part, seconds)] for part in parts}, {"start": "no time"})
    (folder / FILE).write_text(json.dumps(asdict(report)), encoding="utf-8")
    return folder


def test_the_table_is_replaced_and_the_text_around_it_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = script("performance_table")
    page, results = tmp_path / "performance.md", tmp_path / "kept.json"
    monkeypatch.setattr(writer, "PAGE", page)
    monkeypatch.setattr(writer, "RESULTS", results)
    page.write_text(f"before\n{writer.BEGIN}\nold\n{writer.END}\nafter\n", encoding="utf-8")
    for seconds in (1.5, 2.5):
        writer.main(save(tmp_path, [*CASES], seconds))
        text = page.read_text("utf-8")
        assert (text.startswith("before\n"), text.endswith("\nafter\n")) == (True, True)
        assert text.count("| a start") == 1
        assert text.count(f"{seconds}") == 4 * len(CASES)
        assert "2 cores, 2 threads, 2026-01-02" in text
    with pytest.raises(UserError, match=r"not measured: start \(no time\)"):
        writer.main(save(tmp_path, ["training"], 9.5))
    assert "9.5" not in page.read_text("utf-8")


def test_the_page_has_the_table_of_the_figures_that_are_kept() -> None:
    writer = script("performance_table")
    report = Report(**json.loads(writer.RESULTS.read_text("utf-8")))
    assert table_of(report).markdown() in writer.PAGE.read_text("utf-8")
