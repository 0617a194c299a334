"""Run the trainings of a study, several at a time, each in a process of its own, and keep what they measured.

A combination is done when the file of rows has it; what is done is never repeated, so a study that was stopped goes
on with the next call, on another machine too. One that fails keeps no other from being trained.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from d2e_sft.util.errors import UserError
from eval.study.rows import read_rows, rows_of, rows_of_run, write_rows
from eval.study.study import Combination
from eval.sweep.process import last_lines, run_logged
from eval.sweep.record import locked

Say = Callable[[str], None]


@dataclass(frozen=True)
class Failed:
    """A combination whose data could not be built, or whose training ended with an error."""

    combination: Combination
    reason: str


@dataclass
class StudyRun:
    """What the workers of one call share.

    Attributes:
        rows: the file of measured rows.
        keep_models: keep the weights of finished trainings.
    """

    out: Path
    rows: Path
    keep_models: bool
    say: Say
    failed: list[Failed] = field(default_factory=list)
    _writing: threading.Lock = field(default_factory=threading.Lock)
    _building: defaultdict[Path, threading.Lock] = field(default_factory=lambda: defaultdict(threading.Lock))

    def train(self, combination: Combination, lock: int, environment: dict[str, str]) -> None:
        """Build the data where it is missing, train, and keep the rows."""
        began = time.perf_counter()
        try:
            self._build(combination, lock, environment)
            how = ["--overwrite"] if combination.run.exists() else []
            words = [combination.base, *combination.overrides, *how]
            self._step("train", words, combination, lock, environment)
            rows = rows_of_run(combination)
        except (UserError, OSError) as error:
            self.failed.append(Failed(combination, str(error)))
            self.say(f"{combination.name}: FAILED\n{error}")
            return
        with self._writing:
            write_rows([*read_rows(self.rows), *rows], self.rows)
        if not self.keep_models:
            for file in combination.run.glob("*.safetensors"):
                file.unlink()
        last = [row for row in rows if row["step"] == rows[-1]["step"]]
        found = "; ".join(f"{row['decoder']} {100 * row['aligned']:.0f} / {100 * row['conflict']:.0f}" for row in last)
        self.say(f"{combination.name}: aligned / conflict {found} ({time.perf_counter() - began:.0f} s)")

    def _build(self, combination: Combination, lock: int, environment: dict[str, str]) -> None:
        with self._building[combination.data]:
            if (combination.data / "manifest.json").is_file():
                return
            shutil.rmtree(combination.data, ignore_errors=True)
            words = ["build", *combination.build, "--out", str(combination.data)]
            self._step("data", words, combination, lock, environment)

    def _step(
        self, verb: str, arguments: Sequence[str], combination: Combination, lock: int, environment: dict[str, str]
    ) -> None:
        log = self.out / "logs" / f"{combination.name}.{verb}.log"
        status = run_logged([verb, *arguments], log, lock, environment)
        if status != 0:
            raise UserError(f"d2e {verb} ended with status {status}, see {log}\n{last_lines(log)}")


def missing(combinations: Sequence[Combination], rows: Path) -> list[Combination]:
    """Those that the file of rows does not have."""
    measured = read_rows(rows)
    return [combination for combination in combinations if not rows_of(measured, combination.values)]


def run_study(
    combinations: Sequence[Combination], out: Path, rows: Path, *, jobs: int, keep_models: bool, say: Say
) -> list[Failed]:
    """Train what is missing.

    Args:
        jobs: trainings at a time; the cores are shared out evenly unless OMP_NUM_THREADS says how many each has.

    Returns:
        what failed.

    Raises:
        UserError: another process works in the folder, or the file of rows cannot be read.
    """
    left = missing(combinations, rows)
    run = StudyRun(out, rows, keep_models, say)
    threads = str(max(1, (os.cpu_count() or 1) // jobs))
    environment = {"OMP_NUM_THREADS": threads, **os.environ}
    with locked(out) as lock, ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(run.train, combination, lock, environment) for combination in left]
        try:
            for future in futures:
                future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return run.failed
