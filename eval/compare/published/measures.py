"""The published values of a related system next to the measures of results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from d2e_sft.util.table import NONE, Table
from eval.compare.measures.measure import MeasureComparison
from eval.compare.measures.runs import MeasuredRun
from eval.compare.published.values import PAPERS, PublishedTable, excludes, read_published


def beside_published(comparison: MeasureComparison, runs: Sequence[MeasuredRun]) -> Table | None:
    """Return a row for each published value that a run was asked for; None if there is none.

    A value is compared with the runs that have the options of its column and row.
    """
    system = str(runs[0].scores.get("system"))
    if system not in PAPERS:
        return None
    paper = read_published(system)
    lines = [line for table in paper.tables for line in _lines(table, comparison, runs)]
    if not lines:
        return None
    caption = f"{paper.paper}, published values, and ours with the difference; ‡ our 95 % interval excludes the value."
    return Table.in_blocks("published", ["row", "measure", "value", *comparison.labels], lines, caption, keys=2)


def _lines(
    table: PublishedTable, comparison: MeasureComparison, runs: Sequence[MeasuredRun]
) -> list[tuple[str, list[str]]]:
    measures = {row.name: row for row in comparison.rows}
    found = []
    for row in table.rows:
        for (heading, column), value, word in zip(table.columns.items(), row.values, row.words, strict=True):
            measure = measures.get(column.get("measure", ""))
            if measure is None or value is None:
                continue
            wanted = {key: own for key, own in column.items() if key != "measure"} | row.options
            cells = [
                f"{100 * score.mean:.1f} ({100 * score.mean - value:+.1f}{'‡' * excludes(score, value)})"
                if _has(run.scores.get("options") or {}, wanted)
                else NONE
                for run, score in zip(runs, measure.scores, strict=True)
            ]
            if any(cell != NONE for cell in cells):
                found.append((f"{table.where}: {table.title}", [row.name, heading, word, *cells]))
    return found


def _has(options: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(str(options.get(key)) == str(value) for key, value in wanted.items())
