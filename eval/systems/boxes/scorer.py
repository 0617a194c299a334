"""Accuracy by the number of operations that touched the box, for changed and unchanged boxes (section 4.3).

The official script decides what is correct; the corrected scores compare meanings (`answers.py`). The paper's
random baseline draws 0 to 3 of the things named in the same clauses as the box (section 4.1).
"""

from __future__ import annotations

import io
import random
import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from d2e_sft.util.html.figures import COLOURS, LINES, STYLE
from d2e_sft.util.table import Table, percent, percent_interval
from eval.compare.measures.measure import Measure, digest, measure
from eval.score.statistics import bootstrap_average
from eval.systems.boxes.answers import MODIFIERS, in_words_of_t5, right, right_officially
from eval.systems.boxes.gold import Question, clauses, mentions, states

_MOST = 3
_COLUMNS = ("accuracy", "corrected", "baseline")
_THING = re.compile(rf"\b[Tt]he ((?:(?:{'|'.join(MODIFIERS)}) )?\S+)")


def outcomes(questions: Sequence[Question], predicted: Sequence[str | None], baseline: Sequence[str]) -> pd.DataFrame:
    """Return a row for each question: its state, operations, change, and which answers are correct.

    The columns accuracy and baseline (the random answers) are by the official rule, corrected is by the other.
    """

    def officially(texts: Sequence[str | None]) -> list[bool]:
        pairs = zip(texts, questions, strict=True)
        return [right_officially(text, question.answer, t5=question.form == "t5") for text, question in pairs]

    return pd.DataFrame(
        {
            "state": [str(state[0].line) for state in states(questions) for _ in state],
            "numops": [question.numops for question in questions],
            "changed": [question.changed for question in questions],
            "accuracy": officially(predicted),
            "corrected": [right(text, one.answer) for text, one in zip(predicted, questions, strict=True)],
            "baseline": officially(baseline),
        }
    )


def score(rows: pd.DataFrame, unparsed: int, *, boxes: int, seed: int) -> dict[str, Any]:
    """Return all scores as fractions; the state accuracy leaves out states with fewer questions than `boxes`."""

    def accuracies(name: str, column: str) -> dict[str, Any]:
        kinds = {"": rows, "_changed": rows[rows.changed], "_unchanged": rows[~rows.changed]}
        return {f"{name}{kind}": _mean(own[column], seed) for kind, own in kinds.items()}

    whole = _whole(rows, boxes)
    return {
        **accuracies("accuracy", "accuracy"),
        "state_accuracy": _mean(whole.accuracy, seed),
        "corrected": {**accuracies("accuracy", "corrected"), "state_accuracy": _mean(whole.corrected, seed)},
        **accuracies("baseline_accuracy", "baseline"),
        "unparsed": unparsed / len(rows),
        "questions": len(rows),
        "questions_changed": int(rows.changed.sum()),
        "states": len(whole),
        "by_numops": [
            {
                "numops": int(own.numops.iloc[0]),
                "changed": changed,
                "n": len(own),
                **{column: _mean(own[column], seed) for column in _COLUMNS},
            }
            for changed in (True, False)
            for _, own in rows[rows.changed == changed].groupby("numops")
        ],
    }


def _whole(rows: pd.DataFrame, boxes: int) -> pd.DataFrame:
    """Return for each whole state whether all its boxes are correct, by either rule."""
    groups = rows.groupby("state", sort=False)
    return groups[["accuracy", "corrected"]].all()[groups.size() == boxes]


def _mean(values: pd.Series[bool], seed: int) -> dict[str, float] | None:
    return asdict(bootstrap_average([values], seed=seed)) if len(values) else None


def measures(rows: pd.DataFrame, questions: Sequence[Question], *, boxes: int) -> list[Measure]:
    """Return accuracies state by state, because the boxes of a state are asked together; `boxes` is their number."""
    gold = digest([(q.line, q.description, q.box, q.answer) for q in questions])
    found = []
    for name, own, column in (
        ("accuracy", rows, "accuracy"),
        ("accuracy, changed boxes", rows[rows.changed], "accuracy"),
        ("accuracy, unchanged boxes", rows[~rows.changed], "accuracy"),
        ("whole states", _whole(rows, boxes).reset_index(), "accuracy"),
        ("accuracy, corrected", rows, "corrected"),
    ):
        counts = own.groupby("state", sort=False)[column].agg(["sum", "size"])
        found += measure(name, "share", "states", gold, dict(zip(counts.index, counts.to_numpy(), strict=True)))
    return found


def tables(scores: dict[str, Any], total: int) -> list[Table]:
    """Return the scores in percent with 95 % intervals; `total` is the number of questions in the gold file."""
    questions, changed = scores["questions"], scores["questions_changed"]
    sources = (scores, scores["corrected"], {key: scores.get(f"baseline_{key}") for key in scores})

    def row(name: str, count: int, key: str) -> list[str]:
        return [name, f"{count:,}", *(_percent(own[key]) for own in sources)]

    rows = [
        row("all questions", questions, "accuracy"),
        row("changed boxes", changed, "accuracy_changed"),
        row("unchanged boxes", questions - changed, "accuracy_unchanged"),
        [*row("whole states", scores["states"], "state_accuracy")[:-1], ""],
    ]
    detail = [
        [str(row["numops"]), ("no", "yes")[row["changed"]], f"{row['n']:,}", *(_percent(row[key]) for key in _COLUMNS)]
        for row in scores["by_numops"]
    ]
    scored = f"{questions:,} questions" if questions == total else f"{questions:,} of {total:,} questions"
    columns = ("n", "accuracy", "corrected", "random baseline")
    title = f"Boxes, {scored}: percent with 95 % intervals; unparsed {percent(scores['unparsed'])} %"
    return [
        Table.of(("", *columns), rows, title),
        Table.of(("operations", "changed", *columns), detail, "By the number of operations that touched the box"),
    ]


def _percent(interval: dict[str, float] | None) -> str:
    return percent(None) if interval is None else percent_interval(**interval)


def random_answers(questions: Sequence[Question], seed: int) -> list[str]:
    """Return a random answer to each question."""
    rng = random.Random(f"{seed}/boxes/baseline")
    answers = []
    for question in questions:
        things = candidates(question)
        drawn = rng.sample(things, rng.randint(0, min(_MOST, len(things))))
        text = " and ".join(f"the {thing}" for thing in drawn) or "nothing"
        answers.append(in_words_of_t5(text) if question.form == "t5" else text)
    return answers


def candidates(question: Question) -> list[str]:
    """Return the things named in clauses and operations that name the box.

    A noun without modifier stands for all things of the description that have one.
    """
    operations = question.description.removesuffix(".").split(". ")[1:]
    found = _things(". ".join(mentions([*clauses(question.description), *operations], question.box)))
    full: dict[str, list[str]] = {}
    for thing in _things(question.description):
        if " " in thing:
            full.setdefault(thing.split()[-1], []).append(thing)
    return list(dict.fromkeys(name for thing in found for name in full.get(thing, [thing])))


def _things(text: str) -> list[str]:
    things = (thing.rstrip(",.") for thing in _THING.findall(text))
    return list(dict.fromkeys(thing for thing in things if thing != "contents"))


def plot(scores: dict[str, Any]) -> str:
    """Return the paper's plot as SVG: the model's and the baseline's accuracy with 95 % intervals."""
    with mpl.rc_context({**STYLE, "svg.hashsalt": "boxes"}):
        figure = Figure(figsize=(9, 3.6), layout="constrained")
        axes = figure.subplots(1, 2, sharey=True)
        for panel, changed in zip(axes, (True, False), strict=True):
            rows = [row for row in scores["by_numops"] if row["changed"] == changed]
            for index, (name, key) in enumerate((("model", "accuracy"), ("random baseline", "baseline"))):
                panel.errorbar(
                    [row["numops"] for row in rows],
                    [row[key]["mean"] for row in rows],
                    yerr=[
                        [max(row[key]["mean"] - row[key]["low"], 0) for row in rows],
                        [max(row[key]["high"] - row[key]["mean"], 0) for row in rows],
                    ],
                    label=name,
                    color=COLOURS[index],
                    linestyle=LINES[index],
                    marker="o",
                    markersize=3,
                    capsize=2,
                )
            panel.set_title(f"{'changed' if changed else 'unchanged'} boxes")
            panel.set_xlabel("operations that touched the box")
            panel.set_ylim(-0.02, 1.02)
        axes[0].set_ylabel("accuracy")
        axes[0].legend(frameon=False)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
