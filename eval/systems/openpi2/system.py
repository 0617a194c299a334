"""OpenPI2.0 as a benchmark: which tasks there are, and who does them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from eval.systems.asker import Asker
from eval.systems.openpi2.official_files import HOMEPAGE
from eval.systems.openpi2.options import OpenPIOptions, ScorerOptions
from eval.systems.openpi2.runs import RUNS
from eval.systems.openpi2.scoring import SCORERS
from eval.systems.system import SystemCall, SystemOptions, SystemResult


class OpenPI2:
    """See `System`; the units that `max_samples` counts are procedures."""

    name = "openpi2"
    title = "OpenPI2.0 (Zhang et al., EACL 2024)"
    files = f"dev-*.json and cluster_mini of v2.0, {HOMEPAGE}"
    obtain = "d2e data download openpi2"
    options: type[SystemOptions] = OpenPIOptions
    score_options: type[SystemOptions] = ScorerOptions

    def run(self, call: SystemCall, asker: Asker) -> SystemResult:
        """Ask a model the questions of the task and score its answers."""
        return _told(joined([run(call, asker) for run in RUNS[call.options.task]]), call.options)

    def score(self, predictions: Path, gold: Path, options: ScorerOptions) -> SystemResult:
        """Score predictions in the official format."""
        return _told(SCORERS[options.task](predictions, gold, options), options)


def _told(result: SystemResult, options: OpenPIOptions | ScorerOptions) -> SystemResult:
    """The result with the name of the model that BERTScore came from."""
    if options.bertscore_model is None:
        return result
    return replace(result, scores={**result.scores, "bertscore_model": options.bertscore_model})


def joined(results: list[SystemResult]) -> SystemResult:
    """Several tasks' results as one."""
    return SystemResult(
        {name: value for result in results for name, value in result.scores.items()},
        [table for result in results for table in result.tables],
        {name: text for result in results for name, text in result.files.items()},
    )


OPENPI2 = OpenPI2()
