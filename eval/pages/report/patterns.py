"""Error patterns of several runs side by side (the paper's Figure 2 for each), where `d2e errors` has found them."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from d2e_sft.util.html.figures import COLOURS, HATCHES
from eval.compare.error_patterns import ErrorPattern
from eval.compare.pattern_file import RunPatterns
from eval.compare.runs import ScoredRun
from eval.compare.without_context import asked_without_context, command_without_context
from eval.pages.report.stacked import Part, stacked_chart

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
class PatternRow:
    """One run's wrong answers in one relation, or in all; `n` counts its right answers, too."""

    relation: str
    label: str
    n: int
    counts: Mapping[str, int]

    @property
    def wrong(self) -> int:
        """The number of wrong answers."""
        return sum(self.counts.values())


@dataclass(frozen=True)
class PatternSection:
    """What the page says about error patterns.

    Attributes:
        chart: None where no run has a wrong answer whose pattern is known.
        methods: run → `by rule` or the judge's name.
        lacking: run → the commands that find its patterns by rule, in order.
    """

    chart: Markup | None
    rows: Sequence[PatternRow]
    parts: Sequence[Part]
    methods: Mapping[str, str]
    lacking: Mapping[str, Sequence[str]]

    @property
    def by_rule(self) -> bool:
        """Whether some run's patterns are an estimate."""
        return "by rule" in self.methods.values()

    @property
    def mixed(self) -> bool:
        """Whether patterns were found in several ways, so that runs cannot be compared."""
        return len(set(self.methods.values())) > 1


def pattern_section(runs: Sequence[ScoredRun], patterns: Mapping[str, RunPatterns]) -> PatternSection:
    """Count the patterns by relation and run.

    Args:
        patterns: by label of the run; a run without patterns is left out.
    """
    rows = [row for relation in _relations(runs[0]) for row in _rows(relation, runs, patterns)]
    groups: dict[str, dict[str, Mapping[str, float]]] = {}
    for row in rows:
        if row.wrong:
            groups.setdefault(row.relation, {})[f"{row.label} (n = {row.wrong:,})"] = row.counts
    used = [part for part in PATTERN_PARTS if any(row.counts[part.key] for row in rows)]
    chart = None
    if groups:
        description = f"Stacked bars: shares of error patterns by relation of {', '.join(patterns)}"
        chart = stacked_chart(groups, used, unit="wrong answers, percent", description=description)
    return PatternSection(
        chart=chart,
        rows=rows,
        parts=PATTERN_PARTS,
        methods={label: found.method for label, found in patterns.items()},
        lacking={run.label: _commands(run) for run in runs if run.label not in patterns},
    )


def _relations(run: ScoredRun) -> list[str]:
    relations = list(dict.fromkeys(prediction.relation for prediction in run.predictions.values()))
    return [*relations, "all"] if len(relations) > 1 else list(relations)


def _rows(relation: str, runs: Sequence[ScoredRun], patterns: Mapping[str, RunPatterns]) -> list[PatternRow]:
    rows = []
    for run in runs:
        if run.label in patterns:
            own = {key for key, one in run.predictions.items() if relation in ("all", one.relation)}
            found = Counter(error.pattern for key, error in patterns[run.label].errors.items() if key in own)
            rows.append(PatternRow(relation, run.label, len(own), {one.value: found[one] for one in ErrorPattern}))
    return rows


def _commands(run: ScoredRun) -> list[str]:
    find = shlex.join(["d2e", "errors", str(run.path), "--bench", run.folder.name])
    # The rule compares with the answers without the context, which an evaluation of its own writes.
    return [find] if asked_without_context(run) else [command_without_context(run), find]
