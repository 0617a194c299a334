"""OpenPI2.0 as a benchmark: which tasks there are, and how their results are joined."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from d2e_sft.util.errors import UserError
from eval.systems.asking import Asker
from eval.systems.benchmark import Benchmark, BenchmarkCall, BenchmarkResult
from eval.systems.openpi2.clusters import AttributeClusters, Clusters, EntityClusters
from eval.systems.openpi2.downstream import CrepeDownstream, CrepeStates
from eval.systems.openpi2.expansion import Expansion
from eval.systems.openpi2.gold import COLUMNS, HOMEPAGE, read_official, task_of
from eval.systems.openpi2.salience import Salience
from eval.systems.openpi2.schemata import SchemaErrors, Schemata
from eval.systems.openpi2.states import Complete, States
from eval.systems.openpi2.task import OpenPIOptions, OpenPITask, ScorerOptions
from eval.systems.reading import is_flat

# What a run asks (`TaskName`), and what `d2e score` takes (`PredictionKind`).
TASKS: dict[str, OpenPITask[Any, Any]] = {
    "schemata": Schemata(),
    "errors": SchemaErrors(),
    "states": States(),
    "complete": Complete(),
    "salience": Salience(),
    "clusters": Clusters(),
    "entity_clusters": EntityClusters(),
    "attribute_clusters": AttributeClusters(),
    "expansion": Expansion(),
    "crepe": CrepeDownstream(),
    "crepe_states": CrepeStates(),
}
_ALL = ("schemata", "states", "complete")
# The official scripts of these take the n-th procedure of one file with the n-th of the other.
_BY_POSITION = (*_ALL, "salience")


class OpenPI2(Benchmark[Any, Any]):
    """Entity states in procedures; `max_samples` counts procedures."""

    name = "openpi2"
    title = "OpenPI2.0 (Zhang et al., EACL 2024)"
    official_files = f"dev-*.json and cluster_mini of v2.0, {HOMEPAGE}"
    obtain = OpenPITask.obtain
    options = OpenPIOptions
    score_options = ScorerOptions

    def run(self, call: BenchmarkCall, asker: Asker) -> BenchmarkResult:
        folder = call.data if call.data.is_dir() else call.data.parent
        names = _ALL if call.options.task == "all" else (call.options.task,)
        results = [TASKS[name].run(replace(call, data=folder), asker) for name in names]
        joined = BenchmarkResult(
            {name: value for result in results for name, value in result.scores.items()},
            [table for result in results for table in result.tables],
            {name: text for result in results for name, text in result.files.items()},
            measures=[measure for result in results for measure in result.measures],
        )
        return _with_scorer_model(joined, call.options)

    def score(self, predictions: Path, gold: Path, options: ScorerOptions) -> BenchmarkResult:
        """Score predictions in the official format or flat; procedures are paired by their ids."""
        if is_flat(predictions) and (task := task_of(predictions)) != options.task:
            raise UserError(
                f"{predictions}: has the columns of task={task}; expected those of task={options.task}: "
                + ", ".join(COLUMNS[options.task]),
                remedy=f"name its task: --set task={task}",
            )
        kind = TASKS[options.task]
        result = _with_scorer_model(kind.score(predictions, gold, options), options)
        if options.task not in _BY_POSITION:
            return result
        file, truth = kind.predictions_at(predictions, options), kind.gold_at(gold, options)
        predicted, known = list(read_official(file)), list(read_official(truth))
        moved = [name for name, expected in zip_longest(predicted, known[: len(predicted)]) if name != expected]
        if not moved:
            return result
        warning = (
            f"{len(moved)} procedures are not at the same place in {file} as in {truth}, the first is {moved[0]!r}. "
            "Here procedures are paired by their ids; the official script pairs them by position, and would score "
            "each of these against another procedure."
        )
        return replace(result, warnings=[*result.warnings, warning])

    def template(self, gold: Any, options: ScorerOptions) -> Iterable[dict[str, Any]]:
        return TASKS[options.task].template(gold, options)

    def read_gold(self, path: Path, options: ScorerOptions) -> Any:
        return TASKS[options.task].read_gold(path, options)

    def gold_files(self, options: ScorerOptions) -> Sequence[str]:
        return TASKS[options.task].gold_files(options)


def _with_scorer_model(result: BenchmarkResult, options: OpenPIOptions | ScorerOptions) -> BenchmarkResult:
    """Return the result with the name of the model that BERTScore came from."""
    if options.bertscore_model is None:
        return result
    return replace(result, scores={**result.scores, "bertscore_model": options.bertscore_model})


OPENPI2 = OpenPI2()
