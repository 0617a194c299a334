"""Templates: the flat file of predictions that a scorer wants, with everything in it but the predictions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from d2e_sft.data.sample import read_samples
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import write_whole
from eval.run.benchmark import locate_benchmark
from eval.systems.flat.lines import Line, is_flat, write_lines
from eval.systems.registry import load_system
from eval.systems.rows import ROWS
from eval.systems.system import parse_options


def write_template(system: str, gold: Path, given: Sequence[str], file: Path) -> str:
    """Write the template of a system, or of rows; returns how many lines it has, in words.

    Args:
        given: `NAME=VALUE` options of the scorer.

    Raises:
        UserError: the gold file is missing or damaged, the name of the file says no form, or there is such a file.
    """
    if not is_flat(file):
        raise UserError(f"--template {file}: expected a name that ends in .jsonl or .csv", "name another file")
    if file.exists():
        raise UserError(
            f"--template {file}: is there already, and may hold answers", "name another file, or remove it"
        )
    rows = list(_rows(system, gold, given))
    write_whole(file, write_lines(file, rows))
    filled = [name for name in (rows[0] if rows else ()) if all(row[name] == "" for row in rows)]
    return f"{len(rows):,} lines, to fill in: {', '.join(filled)}"


def _rows(system: str, gold: Path, given: Sequence[str]) -> Iterable[Line]:
    if system == ROWS:
        samples = read_samples(locate_benchmark(gold).file)
        return ({"id": sample.id, "dataset": sample.dataset, "output": ""} for sample in samples)
    chosen = load_system(system)
    options = parse_options(chosen.score_options, given, system)
    return chosen.template(chosen.read_gold(chosen.gold_at(gold, options), options), options)
