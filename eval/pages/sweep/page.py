"""A sweep's results as a page, and as Markdown: curves of the probe, then scores of `d2e eval`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from markupsafe import Markup

from d2e_sft.util.files import write_whole
from d2e_sft.util.html.figures import STYLE, inline_svg
from d2e_sft.util.html.pages import page_environment
from d2e_sft.util.table import Table
from eval.compare.runs import load_runs
from eval.pages.report.page import ReportOptions, write_report
from eval.pages.report.reading import reading_chart
from eval.pages.report.samples import datasets_of
from eval.pages.sweep.curves_chart import curves_chart, ends_chart
from eval.pages.sweep.scores_chart import drawn_axis, main_score_name, reading_points, scores_chart
from eval.sweep.plan import Sweep
from eval.sweep.results import PointResult, have_conflict, results_table, scored_folders
from eval.sweep.settings import CAPTION, Setting, setting_table, verdicts


@dataclass(frozen=True)
class SettingView:
    """A setting as page and Markdown show it."""

    name: str
    verdicts: list[str]
    table: Table
    ends: Markup
    curves: Markup


def write_sweep_page(sweep: Sweep, results: Sequence[PointResult], found: Sequence[Setting]) -> list[Path]:
    """Write results.md, results.html, the plot results.png and the reports that the sweep's file asks for.

    Args:
        results: scored points; empty if the sweep is only probed.
        found: the settings of the probe.
    """
    text, page, picture = (sweep.out / f"results.{suffix}" for suffix in ("md", "html", "png"))
    written = [text, page]
    table = results_table(sweep, results) if results else None
    with mpl.rc_context(STYLE):
        views = [_view(setting) for setting in found]
        chart = None
        if any(result.scores is not None for result in results):
            figure = scores_chart(sweep, results)
            chart = inline_svg(figure, f"{main_score_name(results)} against {drawn_axis(sweep)} with 95 % intervals")
            figure.savefig(picture, dpi=150)
            written.append(picture)
    reading = reading_points(results)
    parts = [CAPTION] if views else []
    for view in views:
        parts += [f"## {view.name}", "\n".join(f"- {line}" for line in view.verdicts), view.table.markdown()]
    write_whole(text, "\n\n".join([*parts, *([table.markdown()] if table else [])]) + "\n")
    html = page_environment(Path(__file__).parent).get_template("sweep.html")
    write_whole(
        page,
        html.render(
            sweep=sweep,
            views=views,
            caption=CAPTION,
            table=table,
            chart=chart,
            axis=drawn_axis(sweep),
            score=main_score_name(results),
            tagged=have_conflict(results),
            reading=None if reading is None else reading_chart(reading, reference=False),
        ),
    )
    return [*written, *_reports(sweep, results)]


def _view(setting: Setting) -> SettingView:
    return SettingView(
        setting.name[:1].upper() + setting.name[1:] or "Training",
        verdicts(setting),
        setting_table(setting),
        inline_svg(ends_chart(setting), f"{setting.name}: conflict against aligned accuracy at the end"),
        inline_svg(curves_chart(setting), f"{setting.name}: accuracy over training steps"),
    )


def _reports(sweep: Sweep, results: Sequence[PointResult]) -> list[Path]:
    written = []
    for name, report in sweep.spec.reports.items():
        folders, bench = scored_folders(sweep, results, report.points)
        if folders:
            runs = load_runs(folders, bench)
            written.append(sweep.out / f"{name}.html")
            no_texts_of = datasets_of(runs[0]) if report.no_texts else ()
            write_report(runs, written[-1], ReportOptions(no_texts_of=no_texts_of, title=report.title))
    return written
