"""What the points of a sweep's folder were begun with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from d2e_sft.config.recipe import flat
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import sha256_of, write_json
from d2e_sft.util.locks import LOCK_FILE
from eval.sweep.commands import DONE_FILE
from eval.sweep.plan import Sweep

RECORD_FILE = "sweep.json"
# These change neither a model nor its scores.
_FREE_TO_CHANGE = ("train.output_dir", "train.save_", "train.logging_steps", "train.report_to")


def refuse_other_sweep(sweep: Sweep) -> None:
    """Compare the sweep with the record in its folder; a new or empty folder fits any.

    Points may be added and left out. While nothing is scored, the evaluation may change, so that a mistake there does
    not cost the trained models.

    Raises:
        UserError: a point changed (with what changed), or the folder holds something else.
    """
    file = sweep.out / RECORD_FILE
    if not file.is_file():
        if sweep.out.exists() and (not sweep.out.is_dir() or any(p.name != LOCK_FILE for p in sweep.out.iterdir())):
            raise UserError(f"{sweep.out}: is not empty and no sweep", remedy="choose another folder with --out")
        return
    try:
        before: dict[str, dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
        scored = any((sweep.out / name / DONE_FILE).is_file() for name in before["points"])
        was, now = _flat(before), _flat(_record(sweep))
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise UserError(f"{file}: not readable ({error!r})", remedy="sweep into another folder with --out") from None
    changed = [
        f"{key}: {was[key]!r} → {now[key]!r}"
        for key in sorted(was.keys() & now.keys())
        if was[key] != now[key] and (scored or (not key.startswith("scored ") and ": eval" not in key))
    ]
    if changed:
        shown = changed[:10] + ([f"… and {len(changed) - 10} more"] if len(changed) > 10 else [])
        raise UserError(
            "\n  ".join([f"{sweep.out}: was begun with another sweep", *shown]),
            remedy="undo the change, or sweep into another folder with --out",
        )


def save_record(sweep: Sweep) -> None:
    """Add the sweep's points to `sweep.json` in its folder."""
    file = sweep.out / RECORD_FILE
    before = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    record = _record(sweep)
    write_json(file, {key: before.get(key, {}) | content for key, content in record.items()})


def _record(sweep: Sweep) -> dict[str, dict[str, Any]]:
    files = {point.recipe.data.train for point in sweep.points if Path(point.recipe.data.train).is_file()}
    return {
        "scored": {"benchmark": " ".join(sweep.bench), "--eval-args": sweep.spec.eval_args} if sweep.bench else {},
        "data": {file: sha256_of(Path(file)) for file in sorted(files)},
        "points": {
            point.name: point.recipe.model_dump() | {"evaluation": point.evaluation.model_dump()}
            for point in sweep.points
        },
    }


def _flat(record: dict[str, dict[str, Any]]) -> dict[str, Any]:
    found = {f"scored {key}": value for key, value in record["scored"].items()}
    found |= {f"SHA-256 of {file}": digest for file, digest in record["data"].items()}
    for name, point in record["points"].items():
        found |= {f"{name}: {key}": value for key, value in flat(point) if not key.startswith(_FREE_TO_CHANGE)}
    return found
