"""Error patterns as charts (the paper's Figure 2): in the report, and on a page with one run's wrong answers."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from d2e_sft.util.files import write_whole
from d2e_sft.util.html.figures import COLOURS, HATCHES, inline_svg, styled
from d2e_sft.util.html.pages import render_page
from d2e_sft.util.table import NONE, Table, percent
from eval.compare.context_use import asked_without_context, command_without_context
from eval.compare.error_patterns import (
    PATTERNS_FILE,
    ErrorPattern,
    JudgedError,
    RunPatterns,
    count_patterns,
    relations_of,
)
from eval.compare.runs import ScoredRun
from eval.compare.tables import error_pattern_table
from eval.pages.report.plots import Part, stacked_figure
from eval.pages.report.samples import in_turns, shown
from eval.score.predictions import Prediction

_NAMES = {
    ErrorPattern.NEGLECT_CONTEXT: "neglects the context",
    ErrorPattern.INACCURATE_POSITION: "looks at the wrong place",
    ErrorPattern.OTHER: "other",
    ErrorPattern.UNDECIDED: "undecided",
}
PATTERN_PARTS = tuple(
    Part(pattern.value, name, "#cccccc", "")
    if pattern is ErrorPattern.UNDECIDED
    else Part(pattern.value, name, COLOURS[index], HATCHES[index])
    for index, (pattern, name) in enumerate(_NAMES.items())
)


@dataclass(frozen=True)
class PatternSection:
    """The report's section on error patterns; chart and table are None if no pattern is known.

    Attributes:
        methods: run → `by rule` or the judge's name.
        lacking: runs without patterns.
    """

    chart: Markup | None
    table: Table | None
    methods: Mapping[str, str]
    lacking: Sequence[str]


def pattern_section(runs: Sequence[ScoredRun], patterns: Mapping[str, RunPatterns]) -> PatternSection:
    """Count the patterns by relation and run.

    Args:
        patterns: by label of the run; a run without patterns is left out.
    """
    lines, counted = [], Counter[str]()
    groups: dict[str, dict[str, Mapping[str, float]]] = {}
    for relation in relations_of(runs[0].predictions.values()):
        for run in (run for run in runs if run.label in patterns):
            own = {key for key, one in run.predictions.items() if relation in ("all", one.relation)}
            counts = Counter(error.pattern.value for key, error in patterns[run.label].errors.items() if key in own)
            wrong, shares = counts.total(), [NONE] * len(PATTERN_PARTS)
            counted += counts
            if wrong:
                found = [counts[part.key] for part in PATTERN_PARTS]
                shares = [f"{percent(count / wrong)} % ({count:,})" for count in found]
                groups.setdefault(relation, {})[f"{run.label} (n = {wrong:,})"] = counts
            total = f"{wrong:,} ({percent(wrong / len(own))} % of {len(own):,})"
            lines.append((relation, [run.label, total, *shares]))
    chart = None
    if groups:
        description = f"Stacked bars: shares of error patterns by relation of {', '.join(patterns)}"
        used = [part for part in PATTERN_PARTS if counted[part.key]]
        chart = inline_svg(stacked_figure(groups, used, "wrong answers, percent"), description)
    columns = ["run", "wrong", *(part.name for part in PATTERN_PARTS)]
    return PatternSection(
        chart,
        Table.in_blocks("relation", columns, lines) if lines else None,
        {label: found.method for label, found in patterns.items()},
        [run.label for run in runs if run.label not in patterns],
    )


def commands_for(run: ScoredRun) -> list[str]:
    """The commands that find a run's error patterns by rule."""
    find = shlex.join(["d2e", "errors", str(run.path), "--bench", run.folder.name])
    return [find] if asked_without_context(run) else [command_without_context(run), find]


class WrongAnswer(NamedTuple):
    """A wrong prediction, its pattern and, if known, the answer without the context."""

    prediction: Prediction
    error: JudgedError
    without: Sequence[str] | None


def write_error_report(
    run: ScoredRun, answers: Sequence[WrongAnswer], *, method: str, by_rule: bool, samples: int
) -> list[Path]:
    """Write `error_patterns.html` and, if there are errors, `error_patterns.png` to the run's folder.

    Args:
        method: a sentence on how the patterns were found.
        by_rule: whether they are an estimate.
        samples: number of answers to show in full.
    """
    title = f"Error patterns of {run.label} on {run.scores.bench.name}"
    predictions, errors = [answer.prediction for answer in answers], [answer.error for answer in answers]
    counts = count_patterns(predictions, errors)
    page, picture = run.folder / "error_patterns.html", run.folder / "error_patterns.png"
    chart: Markup | None = None
    if counts:
        bars = {f"{relation} (n = {sum(own.values()):,})": own for relation, own in counts.items()}
        unit = "wrong answers, percent" + (" (estimated by rule)" if by_rule else "")
        figure = stacked_figure({"": bars}, PATTERN_PARTS, unit)
        chart = inline_svg(figure, f"Stacked bars: shares of error patterns by relation, {title}")
        styled(figure.savefig)(picture, dpi=150)
    groups: dict[tuple[str, str], list[WrongAnswer]] = {}
    for answer in answers:
        groups.setdefault((answer.error.pattern.value, answer.prediction.relation), []).append(answer)
    text = render_page(
        Path(__file__).with_name("errors.html"),
        {"shown": shown},
        title=title,
        wrong=len(answers),
        total=len(run.predictions),
        method=method,
        by_rule=by_rule,
        chart=chart,
        names={part.key: part.name for part in PATTERN_PARTS},
        table=error_pattern_table(predictions, errors, len(run.predictions)),
        shown=list(in_turns(list(groups.values())))[:samples],
        file=PATTERNS_FILE,
    )
    write_whole(page, text)
    return [page, picture] if counts else [page]
