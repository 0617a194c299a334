"""What to build."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from d2e_sft.judge.judge import Judge
from d2e_sft.judge.options import JudgeOptions
from data_builders.build.curation import ContextBounds
from data_builders.build.suites import Suite

JudgeJob = Literal["quality", "refine"]
JUDGE_JOBS: tuple[JudgeJob, ...] = get_args(JudgeJob)


@dataclass(frozen=True)
class Options:
    """What to build.

    Attributes:
        datasets: names, or files that describe own data, in the order in which their rows are written.
        out: folder for the results.
        raw: folder with `<dataset>/<file>`; None downloads.
        seed: for every draw.
        skip_bad: put bad raw rows aside instead of stopping at the first.
        settings: `KEY=VALUE` texts such as `boxes.boxes=3` or `refine.threshold=0.5`.
        suite: build this suite's split alone.
        bounds: of the contexts of training samples.
        size: rows to draw, for a suite with ratios; None takes the suite's own number.
        allow_shortfall: draw from the other datasets what one lacks.
        against: benchmark files or build folders whose rows must not be among the training samples.
        judge: the language model that filters and refines training samples; None leaves both to rules.
        judge_options: what `judge` was made from.
        judge_jobs: which of the two jobs it gets.
    """

    datasets: Sequence[str]
    out: Path
    raw: Path | None = None
    seed: int = 0
    skip_bad: bool = False
    settings: Sequence[str] = ()
    suite: Suite | None = None
    bounds: ContextBounds = field(default_factory=ContextBounds)
    size: int | None = None
    allow_shortfall: bool = False
    against: Sequence[Path] = ()
    judge: Judge | None = None
    judge_options: JudgeOptions = field(default_factory=JudgeOptions)
    judge_jobs: frozenset[JudgeJob] = frozenset(JUDGE_JOBS)

    def judge_for(self, job: JudgeJob) -> Judge | None:
        return self.judge if job in self.judge_jobs else None

    def random(self, purpose: str) -> random.Random:
        """A generator that depends on seed and purpose only."""
        return random.Random(f"{self.seed}/{purpose}")
