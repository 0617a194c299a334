"""What `d2e score` does: score one or several files of predictions, compare them, or write a template."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from d2e_sft.util.errors import UserError
from d2e_sft.util.files import replacing, write_whole
from d2e_sft.util.table import Table
from eval.compare.compare import compare_runs
from eval.compare.measures.measure import MeasureComparison, compare_measures
from eval.compare.measures.tables import measures_text
from eval.compare.runs import distinct_labels
from eval.compare.verdicts import terminal_text
from eval.systems.flat.lines import is_flat, write_lines
from eval.systems.registry import load_system
from eval.systems.rows import RowsResult
from eval.systems.run import write_result
from eval.systems.system import SystemResult, parse_options


@dataclass(frozen=True)
class ScoredFile:
    """One file of predictions, scored; `label` is its name in tables."""

    label: str
    file: Path
    system: str
    result: SystemResult

    def write(self, run: Path) -> Path:
        """Leave it as `d2e eval` does, for `d2e compare`, `report` and `table`; returns the folder RUN/eval/BENCH."""
        if isinstance(self.result, RowsResult):
            return self.result.write(run)
        folder = run / "eval" / self.system
        if self.file.is_file() and self.file.parent.resolve() != folder.resolve():
            with replacing(folder / self.file.name) as partial:
                shutil.copyfile(self.file, partial)
        write_result(folder, {"system": self.system, **self.result.scores, "model": str(self.file)}, self.result)
        return folder


def score_files(
    name: str, files: Sequence[Path], gold: Path, given: Sequence[str], names: Sequence[str] | None = None
) -> list[ScoredFile]:
    """Score each file against the same gold, with the same `NAME=VALUE` options; `names` are those in tables.

    Raises UserError if a file is missing or damaged, does not fit the gold, or the names do not fit the files.
    """
    labels, system = _labels(files, names), load_system(name)
    options = parse_options(system.score_options, given, name)
    pairs = zip(labels, files, strict=True)
    return [ScoredFile(label, file, name, system.score(file, gold, options)) for label, file in pairs]


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


def compare_scored(scored: Sequence[ScoredFile]) -> MeasureComparison:
    """Compare the files, with paired differences to the first; UserError if they are about other items."""
    return compare_measures(scored[0].system, {one.label: one.result.measures for one in scored})


def comparison_text(scored: Sequence[ScoredFile], comparison: MeasureComparison) -> str:
    """Return several files' comparison for a terminal; rows have the tables of `d2e compare`."""
    runs = [one.result.as_run(one.file, one.label) for one in scored if isinstance(one.result, RowsResult)]
    return terminal_text(compare_runs(runs)) if runs else measures_text(comparison, Table.terminal)


def write_template(system: str, gold: Path, given: Sequence[str], file: Path) -> str:
    """Write the flat file of predictions that a scorer wants, all but the predictions; returns what to fill in.

    `given` are `NAME=VALUE` options. Raises UserError if the gold file is missing or damaged, the file's name says no
    form, or there is such a file.
    """
    if not is_flat(file):
        raise UserError(f"--template {file}: expected a name that ends in .jsonl or .csv", "name another file")
    if file.is_file():
        raise UserError(f"--template {file}: exists, and may hold answers", "name another file, or remove it")
    chosen = load_system(system)
    options = parse_options(chosen.score_options, given, system)
    rows = list(chosen.template(chosen.read_gold(chosen.gold_at(gold, options), options), options))
    write_whole(file, write_lines(file, rows))
    filled = [name for name in (rows[0] if rows else ()) if all(row[name] == "" for row in rows)]
    return f"{len(rows):,} lines, to fill in: {', '.join(filled)}"
