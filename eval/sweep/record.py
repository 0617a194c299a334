"""A sweep, and what it was begun with, kept in its folder: only the same sweep goes on there."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from d2e_sft.config.recipe import flat
from d2e_sft.data.hub_rows import is_hub
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import sha256_of, write_json
from eval.sweep.grid import RUN, Axis, Point
from eval.sweep.plan import Plan

RECORD_FILE = "sweep.json"
DONE_FILE = "scored.txt"  # in the folder of a scored point; holds the name of the benchmark's folder
_LOCK_FILE = ".lock"
_LOCK_SECONDS = 3.0
# What changes neither a model nor its scores may differ when a sweep goes on.
_FREE_TO_CHANGE = ("train.output_dir", "train.save_", "train.logging_steps", "train.report_to")


@dataclass(frozen=True)
class Sweep:
    """A whole sweep.

    Attributes:
        recipe: as `d2e train` takes it.
        bench: `--bench …` or `--suite …`, as `d2e eval` takes it.
        eval_arguments: further arguments of each `d2e eval`.
        train_arguments: further arguments of each `d2e train`, such as a launcher; they may change.
        plan: what names the runs, where the points are no grid.
        chosen: names of the points that are worked on now; None is all.
    """

    recipe: str
    axes: list[Axis]
    points: list[Point]
    out: Path
    bench: tuple[str, str]
    eval_arguments: list[str]
    train_arguments: list[str]
    plan: Plan | None = None
    chosen: frozenset[str] | None = None

    @property
    def to_train(self) -> list[Point]:
        """The points that train a model of their own, which those to be scored need."""
        needed = {point.trained_in for point in self.to_score}
        return [point for point in self.points if point.train and point.name in needed]

    @property
    def to_score(self) -> list[Point]:
        """The points that are scored themselves."""
        wanted = {point.scored_in for point in self.points if self.chosen is None or point.name in self.chosen}
        return [point for point in self.points if point.name in wanted]


def check_inputs(sweep: Sweep) -> None:
    """Refuse before hours of training what would fail after them.

    Raises:
        UserError: training data or the benchmark are not there.
    """
    for point in sweep.to_train:
        if not is_hub(point.recipe.data.train) and not Path(point.recipe.data.train).is_file():
            raise UserError(
                f"data.train={point.recipe.data.train!r}: no such file", remedy="build it with d2e data build"
            )
    option, name = sweep.bench
    if option == "--bench" and not Path(name).exists():
        raise UserError(
            f"--bench {name}: no such file or folder", remedy="give a folder written by `d2e data build`, or a file"
        )
    if option == "--suite":
        given = dict(zip(sweep.eval_arguments, sweep.eval_arguments[1:], strict=False)).get("--data")
        root = Path(given or "data")
        if not (root / name).is_dir() and not (root / "manifest.json").is_file():
            raise UserError(
                f"--suite {name}: {root / name} does not exist",
                remedy=f"d2e data build --suite {name} --out {root / name}",
            )


def refuse_other_sweep(sweep: Sweep) -> None:
    """Compare with what the folder's sweep was begun with; a new or empty folder fits any.

    How is scored, and on what, may change while nothing is scored: a mistake there must not cost the trained models.
    Runs of a plan may be added to it and taken away.

    Raises:
        UserError: it was another sweep (with what changed), or the folder holds something else.
    """
    file = sweep.out / RECORD_FILE
    if not file.is_file():
        if sweep.out.exists() and (not sweep.out.is_dir() or any(p.name != _LOCK_FILE for p in sweep.out.iterdir())):
            raise UserError(f"{sweep.out}: is not empty and no sweep", remedy="choose another folder with --out")
        return
    try:
        before: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        was, now = dict(_flat(before)), dict(_flat(_content(sweep)))
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise UserError(f"{file}: not readable ({error!r})", remedy="sweep into another folder with --out") from None
    scored = any((sweep.out / name / DONE_FILE).is_file() for name in before["points"])
    changed = [
        f"{key}: {was.get(key, 'absent')!r} → {now.get(key, 'absent')!r}"
        for key in sorted(was.keys() | now.keys())
        if was.get(key) != now.get(key)
        and (scored or not (key in ("benchmark", "--eval-args") or ": eval" in key))
        and ((key in was and key in now) or not key.startswith("run "))
    ]
    if changed:
        shown = changed[:10] + ([f"… and {len(changed) - 10} more"] if len(changed) > 10 else [])
        raise UserError(
            "\n  ".join([f"{sweep.out}: was begun with another sweep", *shown]),
            remedy="go on with the sweep it was begun with, or sweep into another folder with --out",
        )


def save_record(sweep: Sweep) -> None:
    """Write `sweep.json` into the sweep's folder."""
    write_json(sweep.out / RECORD_FILE, _content(sweep))


@contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Hold the folder's lock; yields its descriptor, which child processes are to inherit.

    The lock lives as long as any process that has it: where a sweep was killed and its training was not, the next
    one is refused instead of training into the same folder. One that was just killed still gives its memory back, so
    it is waited for some seconds.

    Raises:
        UserError: another process has it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / _LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        deadline = time.monotonic() + _LOCK_SECONDS
        while not _acquired(descriptor):
            if time.monotonic() > deadline:
                raise UserError(
                    f"{folder}: another sweep, or a training that one left behind, is at work there",
                    remedy="wait until it has ended, or end it",
                )
            time.sleep(0.1)
        yield descriptor
    finally:
        os.close(descriptor)


def _acquired(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _content(sweep: Sweep) -> dict[str, Any]:
    files = {point.recipe.data.train for point in sweep.points}
    return {
        "recipe": sweep.recipe,
        "axes": [asdict(axis) for axis in sweep.axes],
        "bench": list(sweep.bench),
        "eval_arguments": sweep.eval_arguments,
        "data": {file: sha256_of(Path(file)) for file in sorted(files)},
        "points": {
            point.name: {"same_training_as": point.trained_in, "recipe": point.recipe.model_dump()}
            | ({} if sweep.plan is None else {"evaluation": point.evaluation.model_dump()})
            for point in sweep.points
        },
    }


def _flat(content: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "benchmark", " ".join(content["bench"])
    yield "--eval-args", " ".join(content["eval_arguments"])
    axes = {axis["key"]: ",".join(axis["values"]) for axis in content["axes"] if axis["key"] != RUN}
    yield from axes.items()
    for file, digest in content["data"].items():
        yield f"SHA-256 of {file}", digest
    # A grid's points differ in the axes alone, so the rest of one recipe stands for all.
    points = list(content["points"].items())[: 1 if axes else None]
    for name, point in points:
        for key, value in flat(point["recipe"] | {"evaluation": point.get("evaluation", {})}):
            if key not in axes and not key.startswith(_FREE_TO_CHANGE):
                yield f"recipe: {key}" if axes else f"run {name}: {key}", value
