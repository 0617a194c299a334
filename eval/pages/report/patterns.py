"""Error patterns as charts (the paper's Figure 2): in the report, and on a page with one run's wrong answers."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup
from matplotlib.figure import Figure

from d2e_sft.util.files import write_whole
from d2e_sft.util.html.figures import COLOURS, HATCHES, inline_svg, write_figure
from d2e_sft.util.html.pages import render_page
from d2e_sft.util.table import NONE, Table, percent
from eval.compare.decoding import WITHOUT_CONTEXT_FILE, command_without_context
from eval.compare.judged import (
    PATTERN_NAMES,
    PATTERNS_FILE,
    ErrorPattern,
    JudgedError,
    RunPatterns,
    count_patterns,
    relations_of,
)
from eval.compare.runs import ScoredRun
from eval.pages.report.plots import BarPart, stacked_figure
from eval.pages.report.samples import in_turns, shown
from eval.score.predictions import Prediction, SampleKey

PATTERN_PARTS = tuple(
    BarPart(pattern.value, name, "#cccccc", "")
    if pattern is ErrorPattern.UNDECIDED
    else BarPart(pattern.value, name, COLOURS[index], HATCHES[index])
    for index, (pattern, name) in enumerate(PATTERN_NAMES.items())
)


def _counts(runs: Sequence[ScoredRun], patterns: Mapping[str, RunPatterns]) -> Iterator[tuple[str, str, Any, int]]:
    known = {run.label: count_patterns(run, patterns[run.label].errors) for run in runs if run.label in patterns}
    for relation in relations_of(runs[0].predictions.values()):
        size = sum(relation in ("all", prediction.relation) for prediction in runs[0].predictions.values())
        yield from ((relation, label, counts[relation], size) for label, counts in known.items())


def pattern_table(runs: Sequence[ScoredRun], patterns: Mapping[str, RunPatterns]) -> Table:
    lines, possible = [], set[str]().union(*(run_patterns.possible for run_patterns in patterns.values()))
    parts = [part for part in PATTERN_PARTS if part.key in possible]
    for relation, label, counts, samples in _counts(runs, patterns):
        wrong = counts.total()
        counted = [counts[part.key] for part in parts]
        shares = [f"{percent(count / wrong)} % ({count:,})" if wrong else NONE for count in counted]
        lines.append((relation, [label, f"{wrong:,} ({percent(wrong / samples)} % of {samples:,})", *shares]))
    return Table.in_blocks("relation", ["run", "wrong", *(part.name for part in parts)], lines)


def pattern_figure(runs: Sequence[ScoredRun], patterns: Mapping[str, RunPatterns]) -> Figure | None:
    """The shares as stacked bars; None if no run has a wrong answer whose pattern is known."""
    groups: dict[str, dict[str, Mapping[str, float]]] = {}
    counted = Counter[str]()
    for relation, label, counts, _ in _counts(runs, patterns):
        counted += counts
        if counts:
            groups.setdefault(relation, {})[f"{label} (n = {counts.total():,})"] = counts
    used = [part for part in PATTERN_PARTS if counted[part.key]]
    return stacked_figure(groups, used, "wrong answers, percent") if groups else None


def pattern_chart(figure: Figure | None, labels: Iterable[str]) -> Markup | None:
    description = f"Stacked bars: shares of error patterns by relation of {', '.join(labels)}"
    return None if figure is None else inline_svg(figure, description)


def commands_for(run: ScoredRun) -> list[str]:
    """The commands that find a run's error patterns by rule."""
    find = shlex.join(["d2e", "errors", str(run.path), "--bench", run.folder.name])
    is_asked = (run.folder / WITHOUT_CONTEXT_FILE).is_file()
    return [find] if is_asked else [command_without_context(run), find]


class WrongAnswer(NamedTuple):
    """A wrong prediction, its pattern and, if known, the answer without the context."""

    prediction: Prediction
    error: JudgedError
    without: Sequence[str] | None


def write_error_report(
    run: ScoredRun, patterns: RunPatterns, without: Mapping[SampleKey, Sequence[str]], *, method: str, samples: int
) -> list[Path]:
    """Write `error_patterns.html` and, if there are errors, `error_patterns.png` to the run's folder.

    `without` has the answers without the contexts, if known. `method` is a sentence on how the patterns were found.
    The page shows `samples` answers in full.
    """
    groups: dict[tuple[str, str], list[WrongAnswer]] = {}
    for key, error in patterns.errors.items():
        answer = WrongAnswer(run.predictions[key], error, without.get(key))
        groups.setdefault((error.pattern.value, answer.prediction.relation), []).append(answer)
    page, picture = run.folder / "error_patterns.html", run.folder / "error_patterns.png"
    figure = pattern_figure([run], {run.label: patterns})
    text = render_page(
        Path(__file__).with_name("errors.html"),
        {"shown": shown},
        title=f"Error patterns of {run.label} on {run.scores.bench.name}",
        wrong=len(patterns.errors),
        total=len(run.predictions),
        method=method,
        by_rule=patterns.method == "by rule",
        chart=pattern_chart(figure, [run.label]),
        names={part.key: part.name for part in PATTERN_PARTS},
        table=pattern_table([run], {run.label: patterns}),
        shown=list(in_turns(list(groups.values())))[:samples],
        file=PATTERNS_FILE,
    )
    write_whole(page, text)
    if figure is None:
        return [page]
    write_figure(figure, picture, dpi=150)
    return [page, picture]
