"""The rows of the results file: the accuracies that the probe measured during each training, and scored points.

A row of the probe has the value of each axis and these fields. `samples` and `step` are those trained so far.
`aligned` and `conflict` are shares of a subset's samples, `n` is its size; `conflict_DATASET` is that of a further
dataset of the probe. `seconds` and `cpu_seconds` are those of training so far; the latter depends little on other work
on the machine. `overrides` are those of the call, if any.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from d2e_sft.config.recipe import Recipe
from d2e_sft.train.samples import DEBIASED, IMAGINED, PLAIN, PREFIX, PROBED
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import CHECKSUMS, load_yaml, read_results, with_checksums, write_whole

Row = dict[str, Any]
WITHOUT_CONTEXT = "without_context"


def rows_of_run(run: Path, recipe: Recipe, values: Mapping[str, str], overrides: Mapping[str, str]) -> list[Row]:
    """Return the rows of a finished training, from its log; UserError if it has no accuracy by subset."""
    file = run / "trainer_state.json"
    rows: list[Row] = []
    for entry in json.loads(file.read_text(encoding="utf-8"))["log_history"]:
        for name in (PLAIN, DEBIASED, IMAGINED):
            if f"{PREFIX}{name}_conflict" not in entry:
                continue
            decoder = {PLAIN: "plain", IMAGINED: WITHOUT_CONTEXT}.get(name, f"d2e:alpha={entry[PREFIX + 'alpha']:g}")
            step = int(entry["step"])
            rows.append(
                {
                    **{axis: typed(value) for axis, value in values.items()},
                    "decoder": decoder,
                    "samples": step * recipe.train.batch_size,
                    "step": step,
                    **_accuracies(entry, f"{PREFIX}{name}_"),
                    "n": int(entry[f"{PREFIX}n"]),
                    "seconds": round(entry[f"{PREFIX}train_seconds"], 3),
                    "cpu_seconds": round(entry[f"{PREFIX}train_cpu_seconds"], 3),
                    **({"overrides": dict(overrides)} if overrides else {}),
                }
            )
    if not rows:
        raise UserError(
            f"{file}: no accuracy by subset; expected probed rows whose subset is aligned or conflict",
            remedy="let the sweep's `build` make data with tagged test rows, such as --datasets habit",
        )
    return rows


def _accuracies(entry: Mapping[str, Any], prefix: str) -> Row:
    """The accuracies of one way of answering, by subset; those of further datasets as `conflict_DATASET`."""
    starts = tuple(f"{prefix}{subset}" for subset in PROBED)
    return {key.removeprefix(prefix): round(value, 4) for key, value in entry.items() if key.startswith(starts)}


def read_rows(file: Path) -> list[Row]:
    """Return the rows of the probe, none without a file; UserError if it holds no rows, or was edited."""
    if not file.is_file():
        return []
    content = read_results(dict[str, list[Row]], file, "the rows of a sweep", "restore it, or name another: --results")
    return [row for row in content.get("rows", []) if "step" in row]


def refuse_other_overrides(rows: Iterable[Row], asked: Mapping[str, str], file: Path) -> None:
    """Raise UserError if some rows were measured with other overrides than this call: one table would show both."""

    def words(overrides: Mapping[str, str]) -> str:
        return " ".join(f"{key}={value}" for key, value in overrides.items()) or "the file's own settings"

    for other in (row.get("overrides", {}) for row in rows):
        if other != asked:
            raise UserError(
                f"{file}: has rows measured with {words(other)}; this call asks for {words(asked)}",
                remedy="keep these in another file, --results FILE" + (f", or give {words(other)}" if other else ""),
            )


def write_rows(rows: Sequence[Row], file: Path) -> None:
    """Write all rows, one per line, and their checksum."""
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    sums = json.dumps(with_checksums({"rows": rows})[CHECKSUMS])
    write_whole(file, f'{{"rows": [\n{lines}\n],\n"{CHECKSUMS}": {sums}}}\n')


def rows_of(rows: Iterable[Row], values: Mapping[str, str]) -> list[Row]:
    """Return the rows with these values of axes."""
    wanted = {axis: typed(value) for axis, value in values.items()}
    return [row for row in rows if all(row.get(axis) == value for axis, value in wanted.items())]


def typed(name: str) -> Any:
    """Return a value's name as a number if it is one."""
    try:
        value = load_yaml(name)
    except (yaml.YAMLError, ValueError):
        return name
    return value if isinstance(value, int | float) and not isinstance(value, bool) else name
