"""Files of predictions scored alike, of a system or of rows: what `d2e score` prints and keeps of one or several."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from d2e_sft.util.errors import UserError
from d2e_sft.util.table import Table
from eval.compare.compare import compare_runs
from eval.compare.measures.comparison import MeasureComparison, compare_measures
from eval.compare.measures.measure import Measure
from eval.compare.measures.tables import measures_text
from eval.compare.runs import distinct_labels
from eval.compare.subset_tables import subset_tables
from eval.compare.tables import score_tables
from eval.compare.verdicts import terminal_text
from eval.systems.registry import load_system
from eval.systems.rows import ROWS, RowsOptions, ScoredOutputs, score_rows
from eval.systems.run import write_result
from eval.systems.system import SystemResult, parse_options


@dataclass(frozen=True)
class ScoredFile:
    """One file of predictions, scored.

    Attributes:
        label: what tables call it.
        scores: plain JSON.
        text: its tables.
        warnings: printed with the scores.
        result: of a system its result, of rows the scored outputs.
    """

    label: str
    file: Path
    system: str
    scores: dict[str, Any]
    text: str
    measures: Sequence[Measure]
    result: SystemResult | ScoredOutputs
    warnings: Sequence[str] = ()

    def write(self, run: Path) -> Path:
        """Leave it as `d2e eval` does, for `d2e compare`, `report` and `table`; returns the folder RUN/eval/BENCH."""
        if isinstance(self.result, ScoredOutputs):
            return self.result.write(run)
        folder = run / "eval" / self.system
        folder.mkdir(parents=True, exist_ok=True)
        if self.file.is_file() and self.file.parent.resolve() != folder.resolve():
            shutil.copyfile(self.file, folder / self.file.name)
        write_result(folder, {"system": self.system, **self.scores, "model": str(self.file)}, self.result)
        return folder


def score_files(
    system: str, files: Sequence[Path], gold: Path, given: Sequence[str], names: Sequence[str] | None = None
) -> list[ScoredFile]:
    """Score each file against the same gold, with the same `NAME=VALUE` options of the scorer.

    Args:
        system: its name, or `rows`.
        names: what the files are called, in their order; None takes their own names.

    Raises:
        UserError: a file is missing or damaged, does not fit the gold, or the names do not fit the files.
    """
    labels = _labels(files, names)
    score = _score_rows if system == ROWS else _score_system
    return [replace(score(system, file, gold, given), label=label) for file, label in zip(files, labels, strict=True)]


def _labels(files: Sequence[Path], names: Sequence[str] | None) -> list[str]:
    if names is None:
        labels = distinct_labels(files)
        stems = [Path(label).name.removesuffix(file.suffix) for label, file in zip(labels, files, strict=True)]
        return stems if len(set(stems)) == len(stems) else labels
    if len(names) != len(files):
        raise UserError(
            f"--names {','.join(names)}: {len(names)} names for {len(files)} files of predictions",
            remedy="give one name for each file, in their order, with commas between them",
        )
    if len(set(names)) != len(names) or not all(names):
        raise UserError(f"--names {','.join(names)}: a name is empty or given twice", remedy="give each file its own")
    return list(names)


def _score_system(name: str, file: Path, gold: Path, given: Sequence[str]) -> ScoredFile:
    system = load_system(name)
    result = system.score(file, gold, parse_options(system.score_options, given, name))
    text = "\n\n".join(table.terminal() for table in result.tables)
    return ScoredFile("", file, name, result.scores, text, result.measures, result, result.warnings)


def _score_rows(name: str, file: Path, gold: Path, given: Sequence[str]) -> ScoredFile:
    options = parse_options(RowsOptions, given, ROWS)
    assert isinstance(options, RowsOptions)
    scored = score_rows(file, gold, options)
    left_out = f"rows without an output, left out: {scored.left_out:,}" if scored.left_out else ""
    tables = score_tables(scored.scores) + subset_tables(scored.scores)
    text = "\n\n".join(filter(None, [*(table.terminal() for table in tables), left_out]))
    return ScoredFile("", file, name, scored.scores.content(), text, scored.measures, scored)


def compare_scored(scored: Sequence[ScoredFile]) -> MeasureComparison:
    """Compare the files, with paired differences to the first; UserError if they are about other items."""
    return compare_measures(scored[0].system, {one.label: one.measures for one in scored})


def comparison_text(scored: Sequence[ScoredFile], comparison: MeasureComparison) -> str:
    """Return several files' comparison for a terminal; rows have the tables of `d2e compare`."""
    runs = [one.result.as_run(one.file, one.label) for one in scored if isinstance(one.result, ScoredOutputs)]
    return terminal_text(compare_runs(runs)) if runs else measures_text(comparison, Table.terminal)
