"""A comparison by measures as a table, as a table for LaTeX, and next to the published values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from d2e_sft.util.markup import latex_table
from d2e_sft.util.table import NONE, Styled, Table, percent
from eval.compare.compare import Comparison, Score
from eval.compare.figures import corrected_p, gain, tested, with_interval
from eval.compare.published import PAPERS, excludes, read_published
from eval.compare.runs import MeasuredRun

_TEST = "approximate randomisation"


def measure_scores(comparison: Comparison) -> dict[tuple[str, str], list[Score]]:
    """Return measure and unit → the score of each run."""
    blocks = comparison.blocks("measures", "measure", "unit")
    return {(block.name[0], block.name[1]): list(block.scores.values()) for block in blocks}


def measure_table(comparison: Comparison) -> Table:
    """Return a block for each measure, a row for each result: score, difference to the first, and p."""
    first, *others = comparison.labels
    lines = []
    for (name, _), scores in measure_scores(comparison).items():
        for label, score in zip(comparison.labels, scores, strict=True):
            cells = [with_interval(score), gain(score), tested(corrected_p)(score)]
            lines.append((f"{name} ({score.rows:,})", [label, *cells[: 3 if others else 1]]))
    units = " and ".join(dict.fromkeys(unit for _, unit in measure_scores(comparison)))
    caption = f"{comparison.bench}: percent with {comparison.intervals} over {units}"
    if others:
        caption += (
            f"; Δ to {first} in percentage points, paired; p of {comparison.test(_TEST)}, corrected (Holm): the "
            "first measure's for the results, the other measures' for results and measures; * below 0.05"
        )
    left_out = ", ".join(comparison.left_out)
    notes = [f"Left out, because not all results have them: {left_out}."] if left_out else []
    return Table.in_blocks("measure", ["run", "score", *["Δ", "p"] * bool(others)], lines, caption, notes=notes)


def measures_latex(comparison: Comparison) -> str:
    """Return a row for each result, the best bold; † marks a corrected p below 0.05 of the difference to the first."""
    rows: list[list[str]] = [[label] for label in comparison.labels]
    columns = [""]
    for (name, _), scores in measure_scores(comparison).items():
        columns.append(f"{name} (n={scores[0].rows:,})")
        shown = [percent(score.mean) for score in scores]
        best = max(shown, key=float)
        for cells, text, score in zip(rows, shown, scores, strict=True):
            mark = "†" if score.change is not None and score.change.significant else ""
            cell = f"{text}{mark} [{percent(score.low)}, {percent(score.high)}]"
            cells.append(Styled.of(cell, best=text == best and len(set(shown)) > 1))
    caption = f"{comparison.bench}: percent, with {comparison.intervals}."
    if len(comparison.labels) > 1:
        caption += f" † differs from {comparison.labels[0]} ({comparison.test(_TEST)}, Holm, p < 0.05)."
    return latex_table(Table.of(columns, rows, caption), comparison.bench.replace(" ", "-"))


def beside_published(comparison: Comparison, runs: Sequence[MeasuredRun]) -> Table | None:
    """Return a row for each published value whose column and row have a run's options; None without one."""
    system = str(runs[0].scores.get("system"))
    if system not in PAPERS:
        return None
    paper, lines = read_published(system), []
    scores = {name: by_run for (name, _), by_run in measure_scores(comparison).items()}
    for table in paper.tables:
        for row in table.rows:
            for (heading, column), value, word in zip(table.columns.items(), row.values, row.words, strict=True):
                name = column.get("measure", "")
                if name not in scores or value is None:
                    continue
                options = {key: setting for key, setting in column.items() if key != "measure"} | row.options
                cells = [
                    f"{100 * score.mean:.1f} ({100 * score.mean - value:+.1f}{'‡' * excludes(score, value)})"
                    if _has(run.scores.get("options") or {}, options)
                    else NONE
                    for run, score in zip(runs, scores[name], strict=True)
                ]
                if any(cell != NONE for cell in cells):
                    lines.append((f"{table.where}: {table.title}", [row.name, heading, word, *cells]))
    if not lines:
        return None
    caption = f"{paper.paper}, published values, and ours with the difference; ‡ our 95 % interval excludes the value."
    return Table.in_blocks("published", ["row", "measure", "value", *comparison.labels], lines, caption, keys=2)


def _has(options: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    return all(str(options.get(key)) == str(value) for key, value in expected.items())
