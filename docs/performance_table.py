"""Writes the table of docs/explanation/performance.md from a measurement: `make bench`.

`python docs/performance_table.py runs/bench` replaces the whole table, and keeps its figures in docs/results.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from d2e_sft.bench.harness import Report
from d2e_sft.bench.table import FILE, is_complete, table_of
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import read_json_as

DOCS = Path(__file__).parent
PAGE, RESULTS = DOCS / "explanation" / "performance.md", DOCS / "results" / "bench.json"
BEGIN, END = "<!-- table: written by make bench -->", "<!-- end of the table -->"


def with_table(text: str, report: Report) -> str:
    """Return the page with the report's table in place of the one before."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table_of(report).markdown()}\n\n{END}{after}"


def main(folder: Path) -> None:
    """Check that the measurement is a whole one, and write page and figures."""
    report = read_json_as(Report, folder / FILE, "measured figures", "measure again: make bench")
    if not is_complete(report):
        missing = ", ".join(f"{name} ({reason})" for name, reason in report.skipped.items())
        raise UserError(f"{folder / FILE}: some parts are not measured: {missing}", "make bench resumes")
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), report), encoding="utf-8")
    shutil.copyfile(folder / FILE, RESULTS)
    print(f"written: {PAGE}, {RESULTS}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
