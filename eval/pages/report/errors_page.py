"""A run's error patterns as a chart (the paper's Figure 2) and a page with single wrong answers and their reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.figure import Figure

from d2e_sft.util.files import write_whole
from d2e_sft.util.html.figures import STYLE, WIDTH, inline_svg
from d2e_sft.util.html.pages import page_environment
from eval.compare.error_patterns import AnswersWithoutContext, ErrorPattern, JudgedError
from eval.pages.report.patterns import PATTERN_PARTS
from eval.pages.report.samples import in_turns
from eval.pages.report.shown import shown
from eval.pages.report.stacked import stack
from eval.score.predictions import Prediction

PatternCounts = Mapping[str, Mapping[str, int]]  # relation → pattern → number; the last relation may be `all`


@dataclass(frozen=True)
class WrongAnswer:
    """A wrong prediction, its pattern, and the answer without the context where it is known."""

    prediction: Prediction
    error: JudgedError
    without: Sequence[str] | None


@dataclass(frozen=True)
class ErrorReport:
    """What the page is about.

    Attributes:
        total: number of all predictions, right ones included.
        method: a sentence on how the patterns were found.
        by_rule: whether that is an estimate by rule.
        file: the JSON file with all reasons.
    """

    title: str
    total: int
    answers: Sequence[WrongAnswer]
    method: str
    by_rule: bool
    file: str


def wrong_answers(
    wrong: Sequence[Prediction], errors: Sequence[JudgedError], without_context: AnswersWithoutContext | None
) -> list[WrongAnswer]:
    """Put together what belongs to each wrong prediction."""
    answers = without_context or {}
    return [WrongAnswer(p, e, answers.get((p.dataset, p.id))) for p, e in zip(wrong, errors, strict=True)]


def count_patterns(answers: Sequence[WrongAnswer]) -> dict[str, dict[str, int]]:
    """Patterns by relation in order of appearance, and over all where there are several relations."""
    relations: list[str] = list(dict.fromkeys(answer.prediction.relation for answer in answers))
    return {
        relation: {
            pattern.value: sum(
                a.error.pattern is pattern and relation in ("all", a.prediction.relation) for a in answers
            )
            for pattern in ErrorPattern
        }
        for relation in ([*relations, "all"] if len(relations) > 1 else relations)
    }


def write_error_report(report: ErrorReport, folder: Path, *, samples: int) -> list[Path]:
    """Write `error_patterns.html` and, where there are errors, the chart as `error_patterns.png`.

    Args:
        samples: how many wrong answers to show in full.
    """
    counts = count_patterns(report.answers)
    page, picture = folder / "error_patterns.html", folder / "error_patterns.png"
    chart: Markup | None = None
    with mpl.rc_context(STYLE):
        if counts:
            figure = pattern_chart(counts, by_rule=report.by_rule)
            chart = inline_svg(figure, f"Stacked bars: shares of error patterns by relation, {report.title}")
            figure.savefig(picture, dpi=150)
    write_whole(page, _rendered(report, counts, chart, samples))
    return [page, picture] if counts else [page]


def pattern_chart(counts: PatternCounts, *, by_rule: bool) -> Figure:
    """Shares of the patterns among each relation's wrong answers, stacked to 100 percent."""
    figure = Figure(figsize=(WIDTH, 1.3 + 0.34 * len(counts)), layout="constrained")
    axes = figure.add_subplot()
    present = [part for part in PATTERN_PARTS if any(own[part.key] for own in counts.values())]
    stack(axes, range(len(counts)), list(counts.values()), present)
    axes.set_yticks(
        range(len(counts)), [f"{relation} (n = {sum(own.values()):,})" for relation, own in counts.items()]
    )
    axes.set_ylim(len(counts) - 0.5, -0.5)
    # Right-aligned: longer than the axis, it grows over the room of the names and not out of the picture.
    axes.set_xlabel("wrong answers, percent" + (" (estimated by rule)" if by_rule else ""), loc="right")
    figure.legend(loc="outside upper left", ncols=2, frameon=False, handlelength=1.4)
    return figure


def _rendered(report: ErrorReport, counts: PatternCounts, chart: Markup | None, samples: int) -> str:
    environment = page_environment(Path(__file__).parent)
    environment.filters["shown"] = shown
    groups: dict[tuple[str, str], list[WrongAnswer]] = {}
    for answer in report.answers:
        groups.setdefault((answer.error.pattern.value, answer.prediction.relation), []).append(answer)
    return environment.get_template("errors.html").render(
        title=report.title,
        wrong=len(report.answers),
        total=report.total,
        method=report.method,
        by_rule=report.by_rule,
        chart=chart,
        names={part.key: part.name for part in PATTERN_PARTS},
        patterns=[pattern.value for pattern in ErrorPattern],
        relations=counts,
        shown=list(in_turns(list(groups.values())))[:samples],
        file=report.file,
    )
