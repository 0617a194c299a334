"""Each row of the pages on coverage has a status, and each ✓ a command; `test_pages.py` tries the commands."""

from __future__ import annotations

from pathlib import Path

import pytest

PAGES = sorted((Path(__file__).resolve().parents[2] / "docs/explanation").glob("coverage*.md"))
STATUSES = ("✓", "part", "open", "–")


def rows(page: Path) -> list[list[str]]:
    lines = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    found = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [row for row in found if row[0] != "element"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_row_has_a_status_and_every_tick_a_command(page: Path) -> None:
    found = rows(page)
    assert [row for row in found if len(row) != 4 or row[2] not in STATUSES] == []
    assert [row for row in found if row[2] == "✓" and "`d2e " not in row[3]] == []


def test_the_papers_are_covered() -> None:
    assert sum(len(rows(page)) for page in PAGES) > 90
