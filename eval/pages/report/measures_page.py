"""The report page of results with measures: verdicts, a picture, the measures and changed items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl

from d2e_sft.util.files import write_whole
from d2e_sft.util.html.figures import STYLE, inline_svg
from d2e_sft.util.html.pages import page_environment
from eval.compare.measures.comparison import MeasureComparison
from eval.compare.measures.plot import MOST_PANELS, chart
from eval.compare.measures.runs import MeasuredRun, compare_runs_by_measures
from eval.compare.measures.tables import measure_table, measure_verdicts
from eval.score.counts import score_of

_MOST_ITEMS = 200  # listed for each run


@dataclass(frozen=True)
class Changed:
    """Items whose score in the headline differs from the first run.

    Attributes:
        listed: id, score before and after, the largest changes first.
    """

    label: str
    better: int
    worse: int
    listed: Sequence[tuple[str, float, float]]


def write_measures_page(runs: Sequence[MeasuredRun], out: Path, title: str | None = None) -> MeasureComparison:
    """Write one self-contained HTML page that compares the runs with the first one.

    Returns:
        the comparison on the page.

    Raises:
        UserError: the runs' results cannot be compared.
    """
    comparison = compare_runs_by_measures(runs)
    with mpl.rc_context(STYLE):
        picture = inline_svg(chart(comparison), f"{comparison.bench}: scores of {', '.join(comparison.labels)}")
    environment = page_environment(Path(__file__).parent)
    write_whole(
        out,
        environment.get_template("measures.html").render(
            title=title or f"Results on {comparison.bench}",
            comparison=comparison,
            table=measure_table(comparison),
            verdicts=measure_verdicts(comparison),
            picture=picture,
            drawn=min(MOST_PANELS, len(comparison.rows)),
            changes=changed_items(runs, comparison),
            facts=[(run.label, _facts(run)) for run in runs],
        ),
    )
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


def _facts(run: MeasuredRun) -> dict[str, str]:
    names = ("model", "model_name", "decoder", "alpha", "plausibility", "options", "max_samples", "seed", "date")
    told = {name: str(run.scores[name]) for name in names if run.scores.get(name) not in (None, "", {})}
    return {**told, "folder": str(run.folder)}
