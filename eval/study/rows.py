"""The rows of a study: what each training got right, aligned and conflict, at each of its evaluations.

A row holds the value of each axis, `decoder`, `samples` (trained on until then), `step`, `aligned` and `conflict`
(each a share of the subset's samples), `n` (their number), `seconds` (of training alone, until then) and
`cpu_seconds` (the same, of the process's threads, which other work on the machine hardly stretches); where the call
changed what the study's file says, `overrides` has that.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from d2e_sft.train.probe import DEBIASED, IMAGINED, PLAIN, PREFIX
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import load_yaml, write_whole
from eval.study.study import Combination

Row = dict[str, Any]
WITHOUT_CONTEXT = "without_context"


def rows_of_run(combination: Combination) -> list[Row]:
    """The rows of a finished training, from the log that it leaves.

    Raises:
        UserError: its evaluations have no accuracy by subset.
    """
    file = combination.run / "trainer_state.json"
    history = json.loads(file.read_text(encoding="utf-8"))["log_history"]
    recipe = combination.recipe
    rows: list[Row] = []
    for entry in history:
        for name in (PLAIN, DEBIASED, IMAGINED):
            if f"{PREFIX}{name}_conflict" not in entry:
                continue
            decoder = {PLAIN: "plain", IMAGINED: WITHOUT_CONTEXT}.get(name, f"d2e:alpha={entry[PREFIX + 'alpha']:g}")
            step = int(entry["step"])
            rows.append(
                {
                    **{axis: typed(value) for axis, value in combination.values.items()},
                    "decoder": decoder,
                    "samples": step * recipe.train.batch_size,
                    "step": step,
                    "aligned": round(entry[f"{PREFIX}{name}_aligned"], 4),
                    "conflict": round(entry[f"{PREFIX}{name}_conflict"], 4),
                    "n": int(entry[f"{PREFIX}n"]),
                    "seconds": round(entry[f"{PREFIX}train_seconds"], 3),
                    "cpu_seconds": round(entry[f"{PREFIX}train_cpu_seconds"], 3),
                    **({"overrides": combination.asked} if combination.asked else {}),
                }
            )
    if not rows:
        raise UserError(
            f"{file}: no evaluation with an accuracy by subset; expected held-out rows whose subset is aligned or "
            "conflict",
            remedy="let the study's `build` make data whose test rows are tagged, such as --datasets habit",
        )
    return rows


def read_rows(file: Path) -> list[Row]:
    """The measured rows; none where there is no file.

    Raises:
        UserError: it is not a list of rows.
    """
    if not file.is_file():
        return []
    try:
        rows = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{file}: not JSON ({error})", remedy="restore it, or name another file as `rows`") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UserError(f"{file}: expected a list of rows", remedy="name another file as the study's `rows`")
    return rows


def refuse_other_overrides(rows: Iterable[Row], asked: Mapping[str, str], file: Path) -> None:
    """Rows that were measured with other settings than the call asks for stand in no table with its own.

    Raises:
        UserError: the file has some.
    """
    other = next((row.get("overrides", {}) for row in rows if row.get("overrides", {}) != asked), None)
    if other is not None:
        raise UserError(
            f"{file}: has rows measured with {_said(other)}; this call asks for {_said(asked)}",
            remedy="keep these in a file of their own, --rows FILE" + (f", or give {_said(other)}" if other else ""),
        )


def _said(overrides: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in overrides.items()) or "the study's own settings"


def write_rows(rows: Sequence[Row], file: Path) -> None:
    """Write all rows, one a line, so that a change to one is a change of one line."""
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    write_whole(file, f"[\n{lines}\n]\n")


def rows_of(rows: Iterable[Row], values: Mapping[str, str]) -> list[Row]:
    """Those of a combination, or of all that share some values."""
    wanted = {axis: typed(value) for axis, value in values.items()}
    return [row for row in rows if all(row.get(axis) == value for axis, value in wanted.items())]


def typed(name: str) -> Any:
    """A value's name as a number where it is one."""
    try:
        value = load_yaml(name)
    except (yaml.YAMLError, ValueError):
        return name
    return value if isinstance(value, int | float) and not isinstance(value, bool) else name
