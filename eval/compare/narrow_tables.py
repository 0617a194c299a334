"""Scores for a terminal, at most 100 columns wide: of one run a row a group, of several a block a group and verdicts.

The wide Markdown of the same numbers is `eval.compare.tables`.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Callable, Iterator, Sequence

from d2e_sft.util.tables import WIDTH, percent, text_table
from eval.compare.compare import Cell, Comparison, Gain, Row
from eval.compare.faithfulness import ABOUT_JUDGED, ABOUT_WORDS, JUDGED, WORDS, Faithfulness
from eval.compare.tables import (
    collapse_warning,
    collapses,
    points,
    share_bar,
    shares_in_percent,
    short_p,
    with_interval,
)
from eval.score.scores import GroupScores, Scores

_LABEL, _LABEL_BESIDE_SETS = 18, 11  # characters of a run's name at most
_GROUP = 32  # of a dataset's with its relation and format


def narrow_scores(scores: Scores) -> str:
    """One run's scores, a row a group and, of several, a row of all.

    Then label shares of nli with their warnings, what answers of several events score where all are asked for, and
    whether answers of conversations keep to their contexts.
    """
    groups = scores.groups
    rows = groups if len(groups) == 1 else [*groups, scores.overall]
    sets = ["sets"] if any(group.set_accuracy is not None for group in groups) else []
    table = [["", "n", "mean", "EM", "F1", *sets, "lenient", "unparsed"]]
    for row in rows:
        means = [row.exact_match, row.f1, *([row.set_accuracy] if sets else [])]
        shares = (row.extraction.get(mode, 0.0) for mode in ("lenient", "none"))
        values = [percent(None if score is None else score.mean) for score in means]
        table.append([_group(row), f"{row.n:,}", with_interval(row.mean), *values, *map(percent, shares)])
    parts = ["percent; mean is that of EM and F1, with its 95 % bootstrap interval", text_table(table)]
    labelled = [row for row in groups if row.label_shares and row.gold_shares]
    if labelled:
        lines = [["", "gold", "predicted", ""]]
        warnings = []
        for row in labelled:
            assert row.label_shares is not None
            assert row.gold_shares is not None
            shown = shares_in_percent(row.gold_shares), shares_in_percent(row.label_shares)
            lines.append([_group(row), *shown, share_bar(row.label_shares)])
            name = f"{row.dataset} ({row.relation})"
            warnings.append(collapse_warning(name, row.label_shares, row.gold_shares, row.n))
        parts += [_ABOUT_LABELS, text_table(lines), *map(_wrapped, filter(None, warnings))]
    return "\n\n".join([*parts, *_event_answers(rows), *_faithfulness(rows)])


def _event_answers(groups: Sequence[GroupScores]) -> list[str]:
    """What answers of several events score by ESTER's script; nothing where there are none."""
    table = [["", "n", "token F1", "event F1", "HIT@1", "EM"]]
    for group in groups:
        if scores := group.events:
            means = (scores.event_f1.mean, scores.hit_at_1.mean, scores.exact_match.mean)
            table.append([_group(group), f"{scores.n:,}", with_interval(scores.token_f1), *map(percent, means)])
    return [_ABOUT_EVENTS, text_table(table)] if len(table) > 1 else []


def _faithfulness(groups: Sequence[GroupScores]) -> list[str]:
    """Whether free answers of conversations keep to their contexts; nothing where there are none."""
    table = [["", "n", "in context", "context recall"]]
    for group in groups:
        if scores := group.faithfulness:
            shares = (scores.answer_in_context, scores.context_recall)
            table.append([_group(group), f"{scores.n:,}", *map(with_interval, shares)])
    return [_wrapped(ABOUT_WORDS), text_table(table)] if len(table) > 1 else []


def faithfulness_tables(comparison: Comparison, *, words: bool = True) -> str:
    """Free answers of each run: words of the context, and a judge's verdicts where there are any; else empty.

    Args:
        words: False shows the verdicts alone.
    """
    parts = []
    for about, measures in ((ABOUT_WORDS, WORDS), (ABOUT_JUDGED, JUDGED))[0 if words else 1 :]:
        rows = [row for row in comparison.faithfulness if row.has(measures)]
        if rows:
            table = [["", "run", *measures, *([f"Δ {measures[0]}", "p"] if len(comparison.labels) > 1 else [])]]
            table += [line for row in rows for line in _faithful(row, measures)]
            parts += [_wrapped(about), text_table(table)]
    return "\n\n".join(parts)


def _faithful(row: Faithfulness, measures: Sequence[str]) -> Iterator[list[str]]:
    name = f"{_short(row.dataset, _LABEL_BESIDE_SETS)} ({row.n:,})"
    for run in row.runs:
        line = [name, _short(run.label), *(with_interval(run.scores.get(measure)) for measure in measures)]
        if change := run.changes.get(measures[0]):
            line += [points(change), short_p(change.p_value if change.adjusted_p is None else change.adjusted_p)]
        elif len(row.runs) > 1:
            line += ["", ""]
        yield line
        name = ""


def narrow_tables(comparison: Comparison) -> str:
    """Scores with differences to the first run, label shares and the context's worth where there are any."""
    first, *others = comparison.labels
    about = f"{comparison.bench}: percent with 95 % bootstrap intervals; mean is that of EM and F1"
    if others:
        about += (
            f"; Δ to {first} in percentage points, paired; p of a sign-flip test, corrected for the rows (Holm), * "
            "below 0.05"
        )
    parts = [_wrapped(about), _blocks(comparison, comparison.rows, _scores)]
    labelled = [row for row in comparison.rows if row.gold_shares]
    if labelled:
        parts += [_wrapped(_ABOUT_LABELS), _blocks(comparison, labelled, _labels)]
        parts += map(_wrapped, collapses(comparison))
    if comparison.asked_without:
        parts += [_wrapped(_ABOUT_CONTEXT), _blocks(comparison, comparison.rows, _context)]
    if comparison.faithfulness:
        parts.append(faithfulness_tables(comparison))
    return "\n\n".join(parts)


_ABOUT_LABELS = "Predicted labels of nli, percent: positive / negative / none (█ ░ ·)"
_ABOUT_EVENTS = "ESTER's own scores: all events of an answer are asked for, named with ';' between them"
_ABOUT_CONTEXT = (
    "What the context is worth: the mean without it (decoded plainly), what it adds in percentage points (paired; * "
    "where the corrected p is below 0.05), and how many percent of the answers stay the same"
)


def verdicts(comparison: Comparison) -> list[str]:
    """One line for each run but the first: whether its mean over all samples is another, and how sure that is."""
    first, *others = comparison.labels
    row = comparison.rows[-1]
    lines = []
    for label, gain in zip(others, row.gains, strict=True):
        mean = gain.mean
        found = ("higher" if mean.mean > 0 else "lower") if mean.p_value < 0.05 else "not decided"
        told = points(mean).removesuffix(" *")
        lines.append(
            _wrapped(
                f"{label} against {first}: mean {told}, p {short_p(mean.p_value)}: {found} with {row.n:,} samples"
            )
        )
    return lines


def _blocks(
    comparison: Comparison, rows: Sequence[Row], cells: Callable[[Comparison, Row], Iterator[list[str]]]
) -> str:
    """The header once, then what names each row and its lines; columns are as wide in all blocks."""
    header, *_ = cells(comparison, rows[0])
    lines: list[list[str]] = [header]
    headings: dict[int, str] = {}
    for row in rows:
        headings[len(lines)] = f"{_named(row)} ({row.n:,})"
        lines += list(cells(comparison, row))[1:]
    table = text_table([[f"  {line[0]}", *line[1:]] for line in lines]).splitlines()
    told = ([headings[number], line] if number in headings else [line] for number, line in enumerate(table))
    return "\n".join(itertools.chain.from_iterable(told))


def _scores(comparison: Comparison, row: Row) -> Iterator[list[str]]:
    sets = ["sets"] if comparison.has_sets else []
    differences = ["Δ mean", "p"] if row.gains else []
    room = _LABEL_BESIDE_SETS if sets else _LABEL
    yield ["run", "mean", "EM", "F1", *sets, "unparsed", *differences]
    for label, cell, gain in zip(comparison.labels, row.cells, [None, *row.gains], strict=True):
        of_sets = [_mean(cell, "set_accuracy")] if sets else []
        values = [with_interval(cell.mean), _mean(cell, "exact_match"), _mean(cell, "f1"), *of_sets]
        yield [
            _short(label, room),
            *values,
            percent(cell.extraction.get("none", 0.0)),
            *(_difference(gain) if differences else []),
        ]


def _mean(cell: Cell, name: str) -> str:
    score = getattr(cell, name)
    return percent(None if score is None else score.mean)


def _difference(gain: Gain | None) -> list[str]:
    if gain is None:
        return ["", ""]
    p = gain.mean.p_value if gain.mean.adjusted_p is None else gain.mean.adjusted_p
    return [points(gain.mean), short_p(p)]


def _labels(comparison: Comparison, row: Row) -> Iterator[list[str]]:
    yield ["run", "labels", ""]
    of_runs = [(_short(label), cell.label_shares) for label, cell in zip(comparison.labels, row.cells, strict=True)]
    for name, share in [("gold", row.gold_shares), *of_runs]:
        if share:
            yield [name, shares_in_percent(share), share_bar(share)]


def _context(comparison: Comparison, row: Row) -> Iterator[list[str]]:
    yield ["run", "without", "context adds", "same"]
    for label, use in zip(comparison.labels, row.context_use, strict=True):
        if use is not None:
            yield [_short(label), with_interval(use.without), points(use.gain), percent(use.same)]


def _named(row: Row | GroupScores) -> str:
    return ", ".join(dict.fromkeys(part for part in (row.dataset, row.relation, row.format) if part != "–"))


def _group(row: Row | GroupScores) -> str:
    name = _named(row).replace("subevent_conditional", "subevent")
    return name if len(name) <= _GROUP else f"{name[: _GROUP - 1]}…"


def _short(label: str, room: int = _LABEL) -> str:
    """The label's end, by which labels differ, where it is too long."""
    return label if len(label) <= room else f"…{label[1 - room :]}"


def _wrapped(text: str) -> str:
    return "\n".join(textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False))
