"""Tables of one run's scores: by group and over all samples, and by subset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from d2e_sft.util.table import Table, percent
from eval.compare.figures import collapse_warning, mean_of, share_bar, shares_in_percent, with_interval
from eval.compare.tables import (
    ABOUT_CONFIQA,
    ABOUT_LABELS,
    ABOUT_REFUSALS,
    ABOUT_WORDS,
    name_of,
    untagged_note,
    with_lines,
)
from eval.score.confiqa import MEASURES as MEASURES_OF_CONFIQA
from eval.score.faithfulness import BY_WORDS, REFUSALS
from eval.score.frame import AVERAGE, GAP
from eval.score.predictions import RIGHT
from eval.score.scores import GroupScores, Scores

_EVENT_MEASURES = {"token_f1": "token F1", "event_f1": "event F1", "hit_at_1": "HIT@1", "exact_match": "EM"}
_NESTED = (
    ("events", _EVENT_MEASURES, "ESTER's own scores: all events of an answer are asked for, separated by ';'"),
    ("confiqa", {heading: heading for heading in MEASURES_OF_CONFIQA.values()}, ABOUT_CONFIQA),
    ("faithfulness", BY_WORDS, ABOUT_WORDS),
)


def score_tables(scores: Scores) -> list[Table]:
    """Return one run's scores by group and over all samples, nli labels, ESTER's scores and faithfulness."""
    groups = scores.groups if len(scores.groups) == 1 else [*scores.groups, scores.overall]
    labelled = [(g, g.gold_shares, g.label_shares) for g in scores.groups if g.label_shares and g.gold_shares]
    labels = [
        [name_of(g.key), shares_in_percent(gold), shares_in_percent(pred), share_bar(pred)]
        for g, gold, pred in labelled
    ]
    warnings = [collapse_warning(f"{g.dataset} ({g.relation})", pred, gold, g.n) for g, gold, pred in labelled]
    return with_lines(
        [
            _scores_of(groups),
            Table.of(["samples", "gold", "predicted", ""], labels, ABOUT_LABELS, notes=[*filter(None, warnings)]),
            *(_nested(groups, *nested) for nested in _NESTED),
            _refusals(groups),
        ]
    )


def _scores_of(groups: Sequence[GroupScores]) -> Table:
    sets = any(group.set_accuracy is not None for group in groups)
    lenient = any(group.extraction.get("lenient") for group in groups)
    ambiguous = any(group.ambiguous for group in groups)
    lines = []
    for g in groups:
        shares = [percent(g.extraction.get(mode, 0.0)) for mode in ("lenient", "none")][not lenient :]
        means = map(mean_of, (g.exact_match, g.f1, *[g.set_accuracy] * sets))
        shares += [percent(g.ambiguous)] * ambiguous
        lines.append([name_of(g.key), g.n, with_interval(g.mean), *means, *shares])
    columns = ["samples", "n", "mean", "EM", "F1", *["sets"] * sets, *["lenient"] * lenient, "unparsed"]
    columns += ["ambiguous"] * ambiguous
    note = "; lenient: outputs whose answer was read without the response form" * lenient
    note += "; ambiguous: unparsed outputs that could mean several options" * ambiguous
    return Table.of(columns, lines, f"Percent; mean is that of EM and F1, with its 95 % interval{note}")


def _nested(groups: Sequence[GroupScores], field: str, measures: Mapping[str, str], caption: str) -> Table:
    """ESTER's or ConFiQA's scores, or one run's faithfulness by words."""
    lines = []
    for g, sub in ((g, sub) for g in groups if (sub := getattr(g, field))):
        shown = [with_interval(sub.get(name)) if name == "token_f1" else mean_of(sub.get(name)) for name in measures]
        lines.append([name_of(g.key), sub["n"], *shown])
    return Table.of(["samples", "n", *measures.values()], lines, caption)


def _refusals(groups: Sequence[GroupScores]) -> Table:
    """How often one run refuses, rightly and wrongly, with the numbers of rows without and with an answer."""
    lines = list[list[Any]]()
    pairs: list[tuple[GroupScores, dict[str, Any]]] = [(g, g.faithfulness) for g in groups if g.faithfulness]
    for g, scores in (pair for pair in pairs if pair[1]["lacking"]):
        refused, *rates = (mean_of(scores.get(name)) for name in REFUSALS)
        others = scores.get("answerable", scores["n"] - scores["lacking"])
        lines.append([name_of(g.key), scores["lacking"], refused, others, *rates])
    return Table.of(
        ["samples", "lacking", REFUSALS["refusal"], "others", *list(REFUSALS.values())[1:]], lines, ABOUT_REFUSALS
    )


def subset_tables(scores: Scores) -> list[Table]:
    """Return one run's measures, a row for each subset of a dataset; empty where no row is tagged."""
    lines: list[list[object]] = []
    for entry in scores.subsets:
        for name, subset in entry.subsets.items():
            shares = (subset.accuracy, subset.habit_rate, subset.memorisation_ratio)
            lines.append([entry.dataset, name, subset.n, *map(with_interval, shares)])
        if entry.gap is not None:
            lines.append([entry.dataset, GAP, None, with_interval(entry.gap), None, None])
    tagged = sum(subset.n for entry in scores.subsets if entry.dataset != AVERAGE for subset in entry.subsets.values())
    caption = (
        f"By subset: accuracy ({RIGHT}) in percent with 95 % intervals; gap = aligned − conflict; habit rate: the "
        "answer is the habit; M_R: memorisation ratio." + untagged_note(scores.overall.n - tagged)
    )
    columns = ["dataset", "subset", "n", "accuracy", "habit rate", "M_R"]
    return [Table.of(columns, lines, caption, keys=2)] if lines else []
