"""The tables of `d2e data diagnose`, for the terminal and for a page without external parts."""

from __future__ import annotations

from pathlib import Path

from d2e_sft.util.files import write_whole
from d2e_sft.util.html import pages
from d2e_sft.util.table import NONE, Table, percent
from data_builders.quality.context_free import ContextFree
from data_builders.quality.diagnosis import Advice, Diagnosis
from data_builders.swap.revise import Refusal

_KEYS = ["dataset", "format"]


def tables(found: Diagnosis) -> dict[str, Table]:
    """Return the tables by their titles; those without rows are left out."""
    parts = {
        "Can answers be guessed without the context?": _guessed(found),
        "Are answers in their contexts?": _contexts(found),
        "Can rows be revised?": _revised(found),
        "Prompt lengths": _lengths(found),
    }
    return {title: table for title, table in parts.items() if len(table.frame)}


def write_page(found: Diagnosis, advice: Advice, out: Path) -> None:
    """Write the page to `out`; create its folder and replace an earlier page."""
    text = pages.render_page(
        Path(__file__).with_name("diagnosis_page.html"), found=found, advice=advice, tables=tables(found)
    )
    write_whole(out, text)


def _guessed(found: Diagnosis) -> Table:
    models = ", ".join(found.habits_of)
    lines: list[list[object]] = []
    for group in found.groups:
        own: list[object] = [None] * 5
        if group.habits is not None:
            n, counts = len(group.habits), group.by_subset
            own = [n, *(percent(counts[name] / n) for name in ("right", "aligned", "conflict", "unknown"))]
        lines.append([*group.name, group.rows, percent(group.alone.majority_share), _accuracy(group.alone), *own])
        for kind, alone in group.kinds.items():
            shares = percent(alone.majority_share), _accuracy(alone)
            lines.append([group.dataset, f"{group.format}, {kind}", alone.n, *shares, *[None] * 5])
    caption = (
        "Percent of the answers. Most frequent: the most frequent label or answer, or chance among options. Question "
        "alone: a classifier of the question, on rows that it was not trained on; of free text, the answer to the "
        "most similar question. What 20 questions or more ask for (where, the club of `which club`) has a line of its "
        "own. "
    )
    caption += (
        f"Asked: rows that {models} answered without the context. It is right, and it is sure and right (aligned), "
        "sure and wrong (conflict), or not sure (unknown)."
        if models
        else "No model was asked: add --model NAME."
    )
    columns = [*_KEYS, "rows", "most frequent", "question alone"]
    if models:
        columns += ["asked", "right", "aligned", "conflict", "unknown"]
    return Table.of(columns, [line[: len(columns)] for line in lines], caption, keys=2)


def _accuracy(alone: ContextFree) -> str:
    if alone.accuracy is None:
        return NONE
    return f"{percent(alone.accuracy)} ± {percent(alone.standard_error)}"


def _contexts(found: Diagnosis) -> Table:
    lines = [
        [
            *group.name,
            group.rows,
            NONE if group.format == "nli" else percent(group.found / group.rows),
            group.refined,
            percent(group.differing / group.refined) if group.refined else None,
            percent(group.refinement["refined_share_of_words"]) if group.refined else None,
        ]
        for group in found.groups
    ]
    caption = (
        "In context: percent of the rows whose context has an accepted answer. Refined: rows with a refined context, "
        "percent of these that differ from the context, percent of the words kept. Where a refined context equals the "
        "context, the KL term of D²E teaches nothing."
    )
    return Table.of([*_KEYS, "rows", "in context", "refined", "differ", "words kept"], lines, caption, keys=2)


def _revised(found: Diagnosis) -> Table:
    lines: list[list[object]] = []
    for group in found.groups:
        lines.append([*group.name, "can be swapped", group.swaps.swapped, percent(group.swaps.swapped / group.rows)])
        reasons = sorted(Refusal, key=lambda reason: -group.swaps.refused[reason])
        for reason in reasons:
            if count := group.swaps.refused[reason]:
                lines.append([*group.name, f"no: {reason.value}", count, percent(count / group.rows)])
    caption = "Rows whose answer and context can get another entity (d2e data build --swap), and why others cannot."
    return Table.of([*_KEYS, "", "rows", "percent"], lines, caption, keys=2)


def _lengths(found: Diagnosis) -> Table:
    lines = [
        [dataset, view, one.n, *(f"{value:,.0f}" for value in (one.median, one.p95, one.longest))]
        for (dataset, view), one in found.lengths.items()
    ]
    caption = f"In {found.unit}, instruction included. The imagined view leaves the context out."
    return Table.of(["dataset", "view", "n", "median", "95 %", "longest"], lines, caption, keys=2)
