"""OpenPI2.0 as a benchmark: which tasks there are, and how their results are joined."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from eval.systems.asker import Asker
from eval.systems.openpi2 import clusters, complete, crepe_downstream, expansion, pddl, salience, schemata, states
from eval.systems.openpi2.gold import HOMEPAGE
from eval.systems.openpi2.task import OpenPIOptions, ScorerOptions, Task
from eval.systems.system import System, SystemCall, SystemResult

TASKS: dict[str, Task] = {
    "schemata": schemata.TASK,
    "states": states.TASK,
    "complete": complete.TASK,
    "salience": salience.TASK,
    "clusters": clusters.TASK,
    "expansion": expansion.TASK,
    "crepe": crepe_downstream.TASK,
    "pddl": pddl.TASK,
}
_ALL = ("schemata", "states", "complete")
_SCORERS = {kind: score for task in TASKS.values() for kind, score in task.scorers.items()}


def _run(call: SystemCall, asker: Asker) -> SystemResult:
    """Ask a model the questions of the task and score its answers; `max_samples` counts procedures."""
    names = _ALL if call.options.task == "all" else (call.options.task,)
    return _with_scorer_model(_joined([TASKS[name].run(call, asker) for name in names]), call.options)


def _score(predictions: Path, gold: Path, options: ScorerOptions) -> SystemResult:
    """Score predictions in the official format."""
    return _with_scorer_model(_SCORERS[options.task](predictions, gold, options), options)


def _with_scorer_model(result: SystemResult, options: OpenPIOptions | ScorerOptions) -> SystemResult:
    """The result with the name of the model that BERTScore came from."""
    if options.bertscore_model is None:
        return result
    return replace(result, scores={**result.scores, "bertscore_model": options.bertscore_model})


def _joined(results: list[SystemResult]) -> SystemResult:
    """Several tasks' results as one."""
    return SystemResult(
        {name: value for result in results for name, value in result.scores.items()},
        [table for result in results for table in result.tables],
        {name: text for result in results for name, text in result.files.items()},
    )


OPENPI2 = System(
    name="openpi2",
    title="OpenPI2.0 (Zhang et al., EACL 2024)",
    files=f"dev-*.json and cluster_mini of v2.0, {HOMEPAGE}",
    obtain="d2e data download openpi2",
    options=OpenPIOptions,
    score_options=ScorerOptions,
    run=_run,
    score=_score,
)
