"""A sweep's results as a page, and as Markdown: curves of the probe, then scores of `d2e eval`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from d2e_sft.util.files import write_whole
from d2e_sft.util.html.figures import inline_svg, styled
from d2e_sft.util.html.pages import render_page
from eval.compare.runs import load_runs
from eval.pages.report.page import ReportOptions, write_report
from eval.pages.report.reading import reading_chart
from eval.pages.report.samples import datasets_of
from eval.pages.sweep.curves_chart import curves_chart, ends_chart
from eval.pages.sweep.scores_chart import drawn_axis, main_score_name, reading_points, scores_chart
from eval.sweep.plan import Sweep
from eval.sweep.results import PointResult, have_conflict, results_table, scored_folders
from eval.sweep.settings import CAPTION, Setting, setting_table, verdicts


def write_sweep_page(sweep: Sweep, results: Sequence[PointResult], found: Sequence[Setting]) -> list[Path]:
    """Write results.md, results.html, the plot results.png and the reports that the sweep's file asks for.

    Args:
        results: scored points; empty if the sweep is only probed.
        found: the settings of the probe.
    """
    text, page, picture = (sweep.out / f"results.{suffix}" for suffix in ("md", "html", "png"))
    written = [text, page]
    table = results_table(sweep, results) if results else None
    views = [
        {
            "name": setting.name[:1].upper() + setting.name[1:] or "Training",
            "verdicts": verdicts(setting),
            "table": setting_table(setting),
            "ends": ends_chart(setting),
            "curves": inline_svg(curves_chart(setting), f"{setting.name}: accuracy over training steps"),
        }
        for setting in found
    ]
    chart, reading = None, reading_points(results)
    if any(result.scores is not None for result in results):
        figure = scores_chart(sweep, results)
        chart = inline_svg(figure, f"{main_score_name(results)} against {drawn_axis(sweep)} with 95 % intervals")
        styled(figure.savefig)(picture, dpi=150)
        written.append(picture)
    html = render_page(
        Path(__file__).with_name("sweep.html"),
        sweep=sweep,
        views=views,
        caption=CAPTION,
        table=table,
        chart=chart,
        axis=drawn_axis(sweep),
        score=main_score_name(results),
        tagged=have_conflict(results),
        reading=None if reading is None else reading_chart(reading, reference=False),
    )
    write_whole(page, html)
    parts = [CAPTION] if views else []
    for setting, view in zip(found, views, strict=True):
        lines = "\n".join(f"- {line}" for line in verdicts(setting))
        parts += [f"## {view['name']}", lines, setting_table(setting).markdown()]
    write_whole(text, "\n\n".join([*parts, *([table.markdown()] if table else [])]) + "\n")
    return [*written, *_reports(sweep, results)]


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
