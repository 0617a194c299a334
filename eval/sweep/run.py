"""Run a sweep: build data, train and score, several trainings at a time, each step in a process of its own.

What is done is never repeated. After a kill the next call resumes: a training from its last checkpoint, an evaluation
from its last answer. A point that fails does not stop the others.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from d2e_sft.config.recipe import flat
from d2e_sft.train.run_folder import checkpoints_of
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import sha256_of, write_json
from d2e_sft.util.locks import LOCK_FILE, file_lock, turn_in
from d2e_sft.util.paths import refuse_no_place, safe_environment
from d2e_sft.util.startup import usable_cores
from eval.compare.runs import probe_rows, training_log
from eval.score.scores import SCORES_FILE
from eval.sweep.cells import (
    LOGS,
    failed_file,
    is_built_in,
    is_done,
    read_all_rows,
    read_rows,
    rows_of,
    steps,
    trainer_of,
    write_rows,
)
from eval.sweep.plan import FREE_TO_CHANGE, Point, Sweep

Say = Callable[[str], None]
RECORD_FILE = "sweep.json"
_AGAIN = {"--resume": ", resumed", "--overwrite": ", from scratch", "--without-context": " without the contexts"}
_TAIL = 12  # lines of a failed step's log that are shown
LOCK_SECONDS = 3.0  # for a process that was just killed to end


class StepError(Exception):
    def __init__(self, point: Point, step: str, message: str) -> None:
        super().__init__(message)
        self.point, self.step = point, step


@dataclass
class Runner:
    """What the workers of one call share; `lock` is the descriptor of the sweep's lock."""

    sweep: Sweep
    say: Say
    lock: int
    environment: dict[str, str]
    failed: dict[str, str] = field(default_factory=dict)
    _building: defaultdict[Path, threading.Lock] = field(default_factory=lambda: defaultdict(threading.Lock))

    def work_on(self, points: Sequence[Point]) -> None:
        """Train the model that the points share, unless it is there, and score it in all their variants."""
        sweep, trainer = self.sweep, trainer_of(self.sweep, points[0])
        for point in points:
            if is_done(sweep, point, read_rows(sweep.results)):
                self.say(f"{point.name}: already done")
                continue
            try:
                for worker, arguments in steps(sweep, point):
                    if arguments[0] == "eval":
                        self._probe(point)
                    self._step(worker, arguments)
                self._probe(point)
            except (StepError, UserError) as error:
                failed = error.point if isinstance(error, StepError) else point
                self.failed[failed.name] = str(error).splitlines()[0]
                self.say(f"{failed.name}: FAILED\n{error}")
                if isinstance(error, StepError) and error.step in ("data", "train"):
                    rows = read_rows(sweep.results)
                    for name in (left.name for left in points if not is_done(sweep, left, rows)):
                        self.failed.setdefault(name, f"not tried, since {failed.name} failed")
                    return
        if trainer.train and not sweep.spec.keep_models and not self.failed.keys() & {point.name for point in points}:
            for file in (sweep.out / trainer.name).glob("*.safetensors"):
                file.unlink()

    def _probe(self, point: Point) -> None:
        """Add the accuracies during the point's training to the results file, unless they are there."""
        sweep = self.sweep
        if sweep.spec.probe is None:
            return
        with turn_in(sweep.results.parent):  # other sweeps may write to the same file
            values = sweep.axes_of(point)
            if not rows_of(read_rows(sweep.results), values):
                log = training_log(sweep.out / point.trained_in)
                new = probe_rows(log, point.recipe, values, sweep.asked, point.digest())
                if not new:
                    raise UserError(
                        f"{sweep.out / point.trained_in}: no accuracy by subset; expected probed rows whose subset is "
                        "aligned or conflict",
                        remedy="let the sweep's `build` make data with tagged test rows, such as --datasets habit",
                    )
                write_rows([*read_all_rows(sweep.results), *new], sweep.results)
                ends = [row for row in new if row["step"] == new[-1]["step"]]
                accuracies = (f"{r['decoder']} {100 * r['aligned']:.0f} / {100 * r['conflict']:.0f}" for r in ends)
                self.say(f"{point.name}: aligned / conflict {'; '.join(accuracies)}")

    def _step(self, point: Point, arguments: Sequence[str]) -> None:
        """Run `d2e` for a point; points that share data build them once."""
        if arguments[0] != "data":
            self._run(point, arguments)
            return
        folder = Path(arguments[-1])
        with self._building[folder]:
            if not is_built_in(folder):
                shutil.rmtree(folder, ignore_errors=True)
                self._run(point, arguments)

    def _run(self, point: Point, arguments: Sequence[str]) -> None:
        """Run `d2e` with its output in a log. A training that fails is marked, so that it starts from scratch."""
        step, mark, began = arguments[0], failed_file(self.sweep, point), time.perf_counter()
        suffix = next((text for option, text in _AGAIN.items() if option in arguments), "")
        self.say(f"{point.name}: d2e {step}{suffix}")
        log = self.sweep.out / LOGS / f"{point.name}.{step}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8") as output:
            output.write(f"\n$ d2e {' '.join(arguments)}\n# {time.strftime('%Y-%m-%d %H:%M:%S')}\n")
            output.flush()
            status = run_process(arguments, output, self.lock, self.environment)
        if status == 0:
            mark.unlink(missing_ok=True)
            if step == "train" and not self.sweep.spec.keep_checkpoints:
                for checkpoint in checkpoints_of(self.sweep.out / point.name):
                    shutil.rmtree(checkpoint)
            self.say(f"{point.name}: d2e {step} took {time.perf_counter() - began:.0f} s")
            return
        if step == "train" and status > 0:
            mark.touch()
        cause = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
        lines = log.read_text(encoding="utf-8", errors="replace").replace("\r", "\n").splitlines()
        end = "\n".join(f"    {line}" for line in [line for line in lines if line.strip()][-_TAIL:])
        raise StepError(point, step, f"d2e {step} failed ({cause}), see {log}\n{end}")


def run_process(arguments: Sequence[str], output: IO[str], lock: int, environment: Mapping[str, str]) -> int:
    """Run `d2e` in a process that inherits the descriptor of the folder's lock, and return its status.

    The lock is held as long as any of these processes lives. If a sweep is killed and its training is not, the next
    sweep is refused instead of training into the same folder.
    """
    return subprocess.run(
        [sys.executable, "-m", "d2e_sft.cli", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env={**safe_environment(environment), "PYTHONUNBUFFERED": "1"},
        pass_fds=(lock,),
        check=False,
    ).returncode


def run_sweep(sweep: Sweep, say: Say, *, jobs: int = 1) -> dict[str, str]:
    """Train and score what is left to do; return the name of each failed point → why it failed.

    The `jobs` trainings at a time share the cores evenly unless OMP_NUM_THREADS is set. `refuse_other_sweep` has
    checked the folder. UserError if another process works in it.
    """
    refuse_no_place(sweep.results.parent, f"--results {sweep.results}", "the results", "name another file")
    groups: dict[str, list[Point]] = {}
    for point in sweep.work:
        groups.setdefault(point.trained_in, []).append(point)
    threads = {} if jobs == 1 else {"OMP_NUM_THREADS": str(max(1, usable_cores() // jobs))}
    owner, remedy = "another sweep, or a training that one left behind,", "wait until it has ended, or end it"
    with file_lock(sweep.out, owner, remedy, patience=LOCK_SECONDS) as lock, ThreadPoolExecutor(jobs) as pool:
        save_record(sweep)
        runner = Runner(sweep, say, lock, {**threads, **os.environ})
        futures = [pool.submit(runner.work_on, points) for points in groups.values()]
        try:
            for future in futures:
                future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return runner.failed


def refuse_other_sweep(sweep: Sweep) -> None:
    """Compare the sweep with the record in its folder; a new or empty folder fits any.

    Points may be added and left out. While nothing is scored, the evaluation may change, so that a mistake there does
    not cost the trained models. UserError if a point changed, or the folder holds something else.
    """
    file = sweep.out / RECORD_FILE
    if not file.is_file():
        if sweep.out.exists() and (not sweep.out.is_dir() or any(p.name != LOCK_FILE for p in sweep.out.iterdir())):
            raise UserError(f"{sweep.out}: is not empty and no sweep", remedy="choose another folder with --out")
        return
    try:
        before: dict[str, dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
        scored = any(next((sweep.out / name).glob(f"eval/*/{SCORES_FILE}"), None) for name in before["points"])
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
    write_json(file, {key: before.get(key, {}) | content for key, content in _record(sweep).items()})


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
    values = {f"scored {key}": value for key, value in record["scored"].items()}
    values |= {f"SHA-256 of {file}": digest for file, digest in record["data"].items()}
    for name, point in record["points"].items():
        values |= {f"{name}: {key}": value for key, value in flat(point) if not key.startswith(FREE_TO_CHANGE)}
    return values
