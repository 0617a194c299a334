"""The PDDL planner Fast Downward, by unified-planning; `pyperplan` has no negative preconditions, but models do."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from d2e_sft.util.errors import UserError

Outcome = Literal["solvable", "unsolvable", "parse error", "undecided"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
_ENGINE = "fast-downward"
_REMEDY = "pip install 'd2e-sft[planning]'"


_LONGEST = 300


@dataclass(frozen=True)
class Verdict:
    """What the planner says.

    Attributes:
        why: the plan, or what went wrong.
        actions: number of the plan's actions; 0 where the goal holds from the start, None without a plan.
    """

    outcome: Outcome
    why: str = ""
    actions: int | None = None


# Texts of domain and problem → verdict.
Planner = Callable[[str, str], Verdict]


def make_planner(seconds: float) -> Planner:
    """Return a planner with a time limit for one problem; UserError if the library or its engine is not installed."""
    try:
        import up_fast_downward  # noqa: F401  registers the engine
        from unified_planning.shortcuts import get_environment
    except ImportError as error:
        raise UserError(f"task=pddl: needs a planner, which is not installed ({error})", remedy=_REMEDY) from None
    get_environment().credits_stream = None
    return lambda domain, problem: _judge(domain, problem, seconds)


def _judge(domain: str, problem: str, seconds: float) -> Verdict:
    if not domain or not problem:
        return Verdict("parse error", f"the reply has no {'problem' if domain else 'domain'} file")
    try:
        from unified_planning.io import PDDLReader

        with tempfile.TemporaryDirectory() as folder:
            paths = [Path(folder) / name for name in ("domain.pddl", "problem.pddl")]
            for path, text in zip(paths, (domain, problem), strict=True):
                path.write_text(text, encoding="utf-8")
            task = PDDLReader().parse_problem(*map(str, paths))
    # The reader raises of its own, of pyparsing's and of Python's kinds, and by assertions: all mean the same here.
    except Exception as error:
        return Verdict("parse error", _shortened(error))
    try:
        return _solve(task, seconds)
    # So does the engine on what it does not support (numbers, time).
    except Exception as error:
        return Verdict("undecided", _shortened(error))


def _solve(task: Any, seconds: float) -> Verdict:
    from unified_planning.engines import PlanGenerationResultStatus as Status
    from unified_planning.shortcuts import OneshotPlanner

    # The engine writes its translation into the working directory, and leaves it there when it runs out of time.
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        contextlib.chdir(folder),
        OneshotPlanner(name=_ENGINE) as engine,
    ):
        result = engine.solve(task, timeout=seconds)
    if result.plan is not None:
        steps = list(result.plan.actions)
        return Verdict("solvable", "; ".join(map(str, steps)), len(steps))
    if result.status in (Status.UNSOLVABLE_PROVEN, Status.UNSOLVABLE_INCOMPLETELY):
        return Verdict("unsolvable")
    return Verdict("undecided", result.status.name)


def _shortened(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}".replace("\n", " ")
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
