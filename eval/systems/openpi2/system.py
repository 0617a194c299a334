"""OpenPI2.0 as a benchmark: which tasks there are, and how their results are joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

from d2e_sft.util.errors import UserError
from eval.systems.asker import Asker
from eval.systems.flat.lines import is_flat
from eval.systems.flat.openpi2 import COLUMNS, task_of
from eval.systems.openpi2 import clusters, complete, crepe_downstream, expansion, pddl, salience, schemata, states
from eval.systems.openpi2.gold import CLUSTERED, EXPANDED, HOMEPAGE, RANKED, read_official
from eval.systems.openpi2.task import OpenPIOptions, PredictionKind, ScorerOptions, Task
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
# Of a folder of official files, by the kind of predictions; the best first.
GOLD_FILES: dict[PredictionKind, tuple[str, ...]] = {
    "schemata": (EXPANDED, CLUSTERED),
    "states": (RANKED,),
    "complete": (EXPANDED, CLUSTERED),
    "salience": (salience.HUMAN,),
    "entity_clusters": (clusters.ENTITY_GOLD,),
    "attribute_clusters": (clusters.ATTRIBUTE_GOLD,),
    "pddl": ("pddl_tasks.json",),
}
# The official scripts of these take the n-th procedure of one file with the n-th of the other.
_BY_POSITION = ("schemata", "states", "complete", "salience")
_TEMPLATES = {kind: template for task in TASKS.values() for kind, template in task.templates.items()}
_SCORERS = {kind: score for task in TASKS.values() for kind, score in task.scorers.items()}


def _run(call: SystemCall, asker: Asker) -> SystemResult:
    """Ask a model the questions of the task and score its answers; `max_samples` counts procedures."""
    names = _ALL if call.options.task == "all" else (call.options.task,)
    return _with_scorer_model(_joined([TASKS[name].run(call, asker) for name in names]), call.options)


def _score(predictions: Path, gold: Path, options: ScorerOptions) -> SystemResult:
    """Score predictions in the official format or flat; procedures are paired by their ids."""
    if is_flat(predictions) and (task := task_of(predictions)) != options.task:
        raise UserError(
            f"{predictions}: has the columns of task={task}; expected those of task={options.task}: "
            + ", ".join(COLUMNS[options.task]),
            remedy=f"say what it is of: --set task={task}",
        )
    result = _with_scorer_model(_SCORERS[options.task](predictions, gold, options), options)
    moved = _elsewhere(list(read_official(predictions).value), list(read_official(gold).value))
    if options.task not in _BY_POSITION or not moved:
        return result
    warning = (
        f"{len(moved)} procedures do not stand at the same place in {predictions} as in {gold}, the first is "
        f"{moved[0]!r}. Here procedures are paired by their ids; the official script pairs them by position, and "
        "would score each of these against another procedure."
    )
    return replace(result, warnings=[*result.warnings, warning])


def _elsewhere(predicted: Sequence[str], gold: Sequence[str]) -> list[str]:
    """The predicted procedures that position would pair with another one of the gold file, or with none."""
    return [name for name, other in zip_longest(predicted, gold[: len(predicted)]) if name != other]


def _prediction_files(options: ScorerOptions) -> tuple[str, ...]:
    # A run keeps each of its clusterings of entities.
    return ("entity_clusters_*.json",) if options.task == "entity_clusters" else (f"{options.task}.json",)


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
        measures=[measure for result in results for measure in result.measures],
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
    prediction_files=_prediction_files,
    gold_files=lambda options: GOLD_FILES[options.task],
    template=lambda gold, options: _TEMPLATES[options.task](gold),
)
