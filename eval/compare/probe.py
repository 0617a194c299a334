"""Rows of a probe, one for each evaluation of a training, and the file of a sweep's results, which keeps them.

The file also has a row for each scored point.
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
from eval.compare.runs import training_log

Row = dict[str, Any]
SEED = "seed"
WITHOUT_CONTEXT = "without_context"  # the decoder of rows that were answered without it


def rows_of_run(run: Path, recipe: Recipe, values: Mapping[str, str], overrides: Mapping[str, str]) -> list[Row]:
    """Return a row for each evaluation and decoder of a training, from its log; none without a probe.

    Rows have the `values`, `decoder`, `samples` and `step` so far. `aligned` and `conflict` are shares, also as
    `conflict_DATASET` for further datasets; `n` is the size of a subset. The compute of training so far is `seconds`,
    `cpu_seconds` (which depends little on other work on the machine) and `tokens` of all views.
    """
    rows = list[Row]()
    for entry in training_log(run):
        for name in (PLAIN, DEBIASED, IMAGINED):
            prefix = f"{PREFIX}{name}_"
            if f"{prefix}conflict" not in entry:
                continue
            decoder = {PLAIN: PLAIN, IMAGINED: WITHOUT_CONTEXT}.get(name, f"d2e:alpha={entry[PREFIX + 'alpha']:g}")
            starts = tuple(f"{prefix}{subset}" for subset in PROBED)
            tokens = entry.get(f"{PREFIX}train_tokens")  # older runs did not count them
            rows.append(
                {
                    **{axis: typed(value) for axis, value in values.items()},
                    "decoder": decoder,
                    "samples": int(entry["step"]) * recipe.train.batch_size,
                    "step": int(entry["step"]),
                    **{key.removeprefix(prefix): round(entry[key], 4) for key in entry if key.startswith(starts)},
                    "n": int(entry[f"{PREFIX}n"]),
                    "seconds": round(entry[f"{PREFIX}train_seconds"], 3),
                    "cpu_seconds": round(entry[f"{PREFIX}train_cpu_seconds"], 3),
                    **({} if tokens is None else {"tokens": int(tokens)}),
                    **({"overrides": dict(overrides)} if overrides else {}),
                }
            )
    return rows


def typed(name: str) -> Any:
    try:
        value = load_yaml(name)
    except (yaml.YAMLError, ValueError):
        return name
    return value if isinstance(value, int | float) and not isinstance(value, bool) else name


def read_rows(file: Path) -> list[Row]:
    """Return the rows of the probe, as `read_all_rows`."""
    return [row for row in read_all_rows(file) if "step" in row]


def read_all_rows(file: Path) -> list[Row]:
    """Return the rows of a sweep's file, none without a file; UserError if it holds no rows, or was edited."""
    if not file.is_file():
        return []
    content = read_results(dict[str, list[Row]], file, "the rows of a sweep", "restore it, or name another: --results")
    return content.get("rows", [])


def write_rows(rows: Sequence[Row], file: Path) -> None:
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    sums = json.dumps(with_checksums({"rows": rows})[CHECKSUMS])
    write_whole(file, f'{{"rows": [\n{lines}\n],\n"{CHECKSUMS}": {sums}}}\n')


def refuse_other_overrides(rows: Iterable[Row], expected: Mapping[str, str], file: Path) -> None:
    """Raise UserError if some rows were measured with other overrides than this call: one table would show both."""

    def words(overrides: Mapping[str, str]) -> str:
        return " ".join(f"{key}={value}" for key, value in overrides.items()) or "the file's own settings"

    for used in (row.get("overrides", {}) for row in rows):
        if used != expected:
            raise UserError(
                f"{file}: has rows measured with {words(used)}; this call asks for {words(expected)}",
                remedy="keep these in another file, --results FILE" + (f", or give {words(used)}" if used else ""),
            )


def rows_of(rows: Iterable[Row], values: Mapping[str, str]) -> list[Row]:
    typed_values = {axis: typed(value) for axis, value in values.items()}
    return [row for row in rows if all(row.get(axis) == value for axis, value in typed_values.items())]
