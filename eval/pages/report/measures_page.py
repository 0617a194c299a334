"""The report page of results with measures: verdicts, a picture, the measures and changed items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from d2e_sft.util.files import write_whole
from d2e_sft.util.html.figures import inline_svg
from d2e_sft.util.html.pages import render_page
from eval.compare.measures.comparison import MeasureComparison
from eval.compare.measures.runs import MeasuredRun, compare_runs_by_measures
from eval.compare.measures.tables import measure_table, measure_verdicts
from eval.pages.report.plots import MOST_MEASURES, measures_figure
from eval.score.counts import score_of

_MOST_ITEMS = 200  # listed for each run
_FACTS = ("model", "model_name", "decoder", "alpha", "plausibility", "options", "max_samples", "seed", "date")


@dataclass(frozen=True)
class Changed:
    """Items whose headline score differs from the first run; `listed` has id, score before and after."""

    label: str
    better: int
    worse: int
    listed: Sequence[tuple[str, float, float]]


def write_measures_page(runs: Sequence[MeasuredRun], out: Path, title: str | None = None) -> MeasureComparison:
    """Write one self-contained HTML page that compares the runs with the first one; return the comparison.

    Raises:
        UserError: the runs' results cannot be compared.
    """
    comparison = compare_runs_by_measures(runs)
    labels, facts = ", ".join(comparison.labels), []
    for run in runs:
        told = {name: str(run.scores[name]) for name in _FACTS if run.scores.get(name) not in (None, "", {})}
        facts.append((run.label, {**told, "folder": str(run.folder)}))
    page = render_page(
        Path(__file__).with_name("measures.html"),
        title=title or f"Results on {comparison.bench}",
        comparison=comparison,
        table=measure_table(comparison),
        verdicts=measure_verdicts(comparison),
        picture=inline_svg(measures_figure(comparison), f"{comparison.bench}: scores of {labels}"),
        drawn=min(MOST_MEASURES, len(comparison.rows)),
        changes=changed_items(runs, comparison),
        facts=facts,
    )
    write_whole(out, page)
    return comparison


def changed_items(runs: Sequence[MeasuredRun], comparison: MeasureComparison) -> list[Changed]:
    """The items of the headline that changed from the first run to each other run."""
    name = comparison.rows[0].name
    first, *others = [next(one for one in run.measures if one.name == name) for run in runs]

    def score(counts: tuple[float, ...]) -> float:
        return score_of(first.form, [counts]) or 0.0

    found = []
    for run, measure in zip(runs[1:], others, strict=True):
        pairs = [(item, score(counts), score(measure.counts[item])) for item, counts in first.counts.items()]
        moved = sorted((p for p in pairs if p[1] != p[2]), key=lambda p: -abs(p[2] - p[1]))
        better = sum(after > before for _, before, after in moved)
        found.append(Changed(run.label, better, len(moved) - better, moved[:_MOST_ITEMS]))
    return found
