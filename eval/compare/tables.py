"""Tables of a comparison and of one run's scores.

For nli they show how often each label was predicted. A model that ignores the premise gives one label to nearly every
sample and is right on about half of them (PIPER, section 4.4). Accuracy does not show that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from d2e_sft.util.table import Table, percent
from eval.compare.compare import Comparison, Row
from eval.compare.faithfulness import JUDGED, WORDS
from eval.compare.figures import (
    collapse_warning,
    corrected_p,
    mean_of,
    p_value,
    points,
    share_bar,
    shares_in_percent,
    star,
    with_interval,
)
from eval.score.extract import Mode
from eval.score.faithfulness import MEASURES
from eval.score.scores import GroupScores, Scores

_LABELS = "Predicted labels of nli, percent: positive / negative / no label (█ ░ ·)"
_EVENTS = "ESTER's own scores: all events of an answer are asked for, separated by ';'"
_CONTEXT = (
    "What the context is worth: the mean without it (decoded plainly, so do not compare runs with different α), what "
    "it adds in percentage points (paired; * where the corrected p is below 0.05), and the percentage of answers that "
    "stay the same"
)
_ABOUT = {
    WORDS: "Faithfulness of free answers by words, percent. Contained: the answer contains an accepted one. Context "
    "recall: the accepted answer's words in the context that the answer has too. In context: the answer's words that "
    "the context has. Claim overlap: the words of each of its sentences that one sentence of the context has. "
    "Refusal: where the context lacks the answer, the model says so",
    JUDGED: "By a judge, percent of answers: the context supports everything in the answer; it says what the gold "
    "answer says",
}

_PAIRED = (
    "Paired difference to {}: percentage points with 95 % intervals; p of a paired sign-flip test, in brackets "
    "corrected for {} (Holm); * where the corrected p is below 0.05"
)


def score_tables(scores: Scores) -> list[Table]:
    """One run's scores by group and over all samples, with nli labels, ESTER's scores and faithfulness if any."""
    groups = scores.groups if len(scores.groups) == 1 else [*scores.groups, scores.overall]
    sets = any(group.set_accuracy is not None for group in groups)
    lenient = any(g.extraction.get("lenient") for g in groups)
    modes: tuple[Mode, ...] = ("lenient", "none") if lenient else ("none",)
    columns = ["samples", "n", "mean", "EM", "F1", *["sets"] * sets, *["lenient"] * lenient, "unparsed"]
    lines = []
    for g in groups:
        means = map(mean_of, (g.exact_match, g.f1, *[g.set_accuracy] * sets))
        shares = (percent(g.extraction.get(mode, 0.0)) for mode in modes)
        lines.append([_name(g), g.n, with_interval(g.mean), *means, *shares])
    told = "; lenient: outputs whose answer was read without the response form" * lenient
    tables = [Table.of(columns, lines, f"Percent; mean is that of EM and F1, with its 95 % interval{told}")]
    labelled = [(g, g.gold_shares, g.label_shares) for g in scores.groups if g.label_shares and g.gold_shares]
    by_label = [[_name(g), shares_in_percent(gold), *_shares(predicted)] for g, gold, predicted in labelled]
    warnings = [collapse_warning(f"{g.dataset} ({g.relation})", own, gold, g.n) for g, gold, own in labelled]
    tables.append(Table.of(["samples", "gold", "predicted", ""], by_label, _LABELS, notes=[*filter(None, warnings)]))
    events = [
        [_name(g), own.n, with_interval(own.token_f1), *map(mean_of, (own.event_f1, own.hit_at_1, own.exact_match))]
        for g in groups
        if (own := g.events)
    ]
    tables.append(Table.of(["samples", "n", "token F1", "event F1", "HIT@1", "EM"], events, _EVENTS))
    tables.append(_word_table(groups))
    return [table for table in tables if len(table.frame)]


def _word_table(groups: Sequence[GroupScores]) -> Table:
    """One run's faithfulness by words; refusals with the number of rows whose context lacks the answer."""
    found = [(g, g.faithfulness) for g in groups if g.faithfulness]
    lacking = any(own.lacking for _, own in found)
    names = [name for name in MEASURES if name != "refusal" or lacking]
    lines = [
        [_name(g), own.n, *(mean_of(getattr(own, name)) for name in names), *[own.lacking] * lacking]
        for g, own in found
    ]
    columns = ["samples", "n", *map(MEASURES.__getitem__, names), *["of"] * lacking]
    return Table.of(columns, lines, _ABOUT[WORDS])


def comparison_tables(comparison: Comparison, *, detail: bool = False) -> list[Table]:
    """Scores with differences to the first run, then nli labels, the worth of the context and faithfulness if any.

    `detail` shows intervals and differences for every metric, with both p-values.
    """
    tables = [score_table(comparison), gain_table(comparison)] if detail else [_overview(comparison)]
    tables += [label_table(comparison), context_table(comparison), *faithfulness_tables(comparison, detail=detail)]
    return [table for table in tables if len(table.frame)]


def _overview(comparison: Comparison) -> Table:
    first, *others = comparison.labels
    sets, several = comparison.has_sets, len(others) > 0
    tested = f"; Δ to {first} in percentage points, paired; p of a sign-flip test, corrected for the rows (Holm), * "
    caption = f"{comparison.bench}: percent with 95 % intervals; mean is that of EM and F1"
    caption += (tested + "below 0.05") * several

    def cells(row: Row, run: int) -> list[str]:
        cell, gain = row.cells[run], row.gains[run - 1].mean if run else None
        scores = [cell.exact_match, cell.f1, *[cell.set_accuracy] * sets]
        tested = [points(gain), corrected_p(gain)] if run else ["", ""]
        unparsed = percent(cell.extraction.get("none", 0.0))
        return [with_interval(cell.mean), *map(mean_of, scores), unparsed, *tested[: 2 * several]]

    columns = ["mean", "EM", "F1", *["sets"] * sets, "unparsed", *["Δ mean", "p"][: 2 * several]]
    return _by_run(comparison, columns, cells, caption)


def score_table(comparison: Comparison) -> Table:
    """The scores of each run with the interval of every metric."""
    sets = comparison.has_sets

    def cells(row: Row, run: int) -> list[str]:
        cell = row.cells[run]
        scores = [cell.mean, cell.exact_match, cell.f1, *[cell.set_accuracy] * sets]
        return [*map(with_interval, scores), percent(cell.extraction.get("none", 0.0))]

    caption = (
        f"{comparison.bench}: percent with 95 % intervals; mean is that of EM and F1, and an average is "
        "that of its relation's rows"
    )
    return _by_run(comparison, ["mean", "EM", "F1", *["set accuracy"] * sets, "unparsed"], cells, caption)


def gain_table(comparison: Comparison) -> Table:
    """The paired differences of each run to the first for every metric; without rows for one run."""
    sets = comparison.has_sets

    def cells(row: Row, run: int) -> list[str] | None:
        metrics = [*vars(row.gains[run - 1]).values()][: 3 + sets] if run else []
        return [text for one in metrics for text in (points(one), p_value(one))] or None

    caption = _PAIRED.format(comparison.labels[0], "the number of rows")
    columns = [title for name in ("Δmean", "ΔEM", "ΔF1", *["Δset accuracy"] * sets) for title in (name, "p")]
    return _by_run(comparison, columns, cells, caption)


def label_table(comparison: Comparison) -> Table:
    """Predicted label shares next to the gold ones, with a warning where one label took over; nli rows only."""
    lines, warnings = [], []
    for row in comparison.rows:
        if not row.gold_shares:
            continue
        runs = [(label, cell.label_shares) for label, cell in zip(comparison.labels, row.cells, strict=True)]
        lines += [
            (f"{_name(row)} ({row.n:,})", [label, *_shares(shares)])
            for label, shares in [("gold", row.gold_shares), *runs]
            if shares
        ]
        warnings += [
            collapse_warning(f"{label}, {row.dataset} ({row.relation})", shares, row.gold_shares, row.n)
            for label, shares in runs
            if shares
        ]
    return Table.in_blocks("samples", ["run", "labels", ""], lines, _LABELS, notes=[*filter(None, warnings)])


def context_table(comparison: Comparison) -> Table:
    """What the context adds to runs that were also asked without it."""

    def cells(row: Row, run: int) -> list[str] | None:
        use = row.context_use[run]
        return None if use is None else [with_interval(use.without), points(use.gain), percent(use.same)]

    return _by_run(comparison, ["without", "context adds", "same"], cells, _CONTEXT)


def faithfulness_tables(comparison: Comparison, *, words: bool = True, detail: bool = False) -> list[Table]:
    """How far free answers keep to their contexts: by `words`, and by a judge's verdicts if there are any.

    A star marks a difference to the first run; `detail` shows the differences in a table of their own.
    """
    tables, several = [], len(comparison.labels) > 1
    first = comparison.labels[0]
    for known in (WORDS, JUDGED)[0 if words else 1 :]:
        measures = [name for name in known if any(row.has([name]) for row in comparison.faithfulness)]
        lines, differences = [], []
        for row in (row for row in comparison.faithfulness if row.has(measures)):
            lacking = f", {row.lacking:,} lack the answer" * bool(row.lacking and known is WORDS)
            for place, run in enumerate(row.runs):
                scores = [with_interval(run.scores.get(name)) + star(run.changes.get(name)) for name in measures]
                block = f"{row.dataset} ({row.n:,}{lacking})"
                lines.append((block, [run.label, *scores]))
                changes = [run.changes.get(name) for name in measures]
                tested = [text for one in changes for text in (points(one), p_value(one))]
                differences += [(block, [run.label, *tested])] if detail and place and any(changes) else []
        told = f"; * differs from {first} (corrected p below 0.05)" * several
        columns = [title for name in measures for title in (f"Δ {name}", "p")]
        found = (
            Table.in_blocks("samples", ["run", *measures], lines, _ABOUT[known] + told),
            Table.in_blocks("samples", ["run", *columns], differences, _PAIRED.format(first, "runs and measures")),
        )
        tables += [table for table in found if len(table.frame)]
    return tables


def _by_run(
    comparison: Comparison, columns: Sequence[str], cells: Callable[[Row, int], list[Any] | None], caption: str
) -> Table:
    """A block for each row of the comparison, with a line for each run that has cells."""
    lines = [
        (f"{_name(row)} ({row.n:,})", [label, *own])
        for row in comparison.rows
        for run, label in enumerate(comparison.labels)
        if (own := cells(row, run)) is not None
    ]
    return Table.in_blocks("samples", ["run", *columns], lines, caption)


def _name(row: Row | GroupScores) -> str:
    return ", ".join(dict.fromkeys(part for part in (row.dataset, row.relation, row.format) if part != "–"))


def _shares(shares: dict[str, float]) -> tuple[str, str]:
    return shares_in_percent(shares), share_bar(shares)
