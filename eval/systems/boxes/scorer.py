"""Accuracy by the number of operations that touched the box, for changed and unchanged boxes (section 4.3).

The official script decides what is correct; the corrected scores compare meanings (`answers.py`). The paper's
random baseline draws 0 to 3 of the things named in the same clauses as the box (section 4.1).
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from d2e_sft.util.html.figures import COLOURS, LINES, STYLE, svg_text
from d2e_sft.util.table import Table, percent, percent_interval
from eval.score.measures import Measure, digest, measure
from eval.score.statistics import bootstrap_average
from eval.systems.boxes.answers import MODIFIERS, in_words_of_t5, right, right_officially
from eval.systems.boxes.gold import BoxQuestion, clauses, mentions, states

_MOST = 3
_RULES = ("accuracy", "corrected", "baseline")  # columns of what is correct
_THING = re.compile(rf"\b[Tt]he ((?:(?:{'|'.join(MODIFIERS)}) )?\S+)")


def outcomes(
    questions: Sequence[BoxQuestion], predicted: Sequence[str | None], baseline: Sequence[str]
) -> pd.DataFrame:
    """Return a row for each question: its state, operations, change, and which answers are correct.

    The columns accuracy and baseline (the random answers) are by the official rule, corrected is by the other.
    """
    return pd.DataFrame(
        {
            "state": str(state[0].line),
            "numops": question.numops,
            "changed": question.changed,
            "accuracy": right_officially(text, question.answer, t5=question.form == "t5"),
            "corrected": right(text, question.answer),
            "baseline": right_officially(drawn, question.answer, t5=question.form == "t5"),
        }
        for (state, question), text, drawn in zip(
            ((state, question) for state in states(questions) for question in state), predicted, baseline, strict=True
        )
    )


def _kinds(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    return {"": rows, "_changed": rows[rows.changed], "_unchanged": rows[~rows.changed]}


def _whole(rows: pd.DataFrame, boxes: int) -> pd.DataFrame:
    """Return for each whole state whether all its boxes are correct, by either rule."""
    groups = rows.groupby("state", sort=False)
    return groups[["accuracy", "corrected"]].all()[groups.size() == boxes]


def score(rows: pd.DataFrame, unparsed: int, *, boxes: int, seed: int) -> dict[str, Any]:
    """Return all scores as fractions; the state accuracy leaves out states with fewer questions than `boxes`."""

    def mean(values: pd.Series[bool]) -> dict[str, float] | None:
        return asdict(bootstrap_average([values], seed=seed)) if len(values) else None

    def accuracies(name: str, rule: str) -> dict[str, Any]:
        return {f"{name}{kind}": mean(group[rule]) for kind, group in _kinds(rows).items()}

    whole = _whole(rows, boxes)
    return {
        **accuracies("accuracy", "accuracy"),
        "state_accuracy": mean(whole.accuracy),
        "corrected": {**accuracies("accuracy", "corrected"), "state_accuracy": mean(whole.corrected)},
        **accuracies("baseline_accuracy", "baseline"),
        "unparsed": unparsed / len(rows),
        "questions": len(rows),
        "questions_changed": int(rows.changed.sum()),
        "states": len(whole),
        "by_numops": [
            {
                "numops": int(group.numops.iloc[0]),
                "changed": changed,
                "n": len(group),
                **{rule: mean(group[rule]) for rule in _RULES},
            }
            for changed in (True, False)
            for _, group in rows[rows.changed == changed].groupby("numops")
        ],
    }


def measures(rows: pd.DataFrame, questions: Sequence[BoxQuestion], *, boxes: int) -> list[Measure]:
    """Return accuracies state by state, because the boxes of a state are asked together; `boxes` is their number."""
    gold = digest([(q.line, q.description, q.box, q.answer) for q in questions])
    kinds = _kinds(rows)
    measured = []
    for name, group, rule in (
        ("accuracy", rows, "accuracy"),
        ("accuracy, changed boxes", kinds["_changed"], "accuracy"),
        ("accuracy, unchanged boxes", kinds["_unchanged"], "accuracy"),
        ("whole states", _whole(rows, boxes).reset_index(), "accuracy"),
        ("accuracy, corrected", rows, "corrected"),
    ):
        counts = group.groupby("state", sort=False)[rule].agg(["sum", "size"])
        measured += measure(name, "share", "states", gold, dict(zip(counts.index, counts.to_numpy(), strict=True)))
    return measured


def tables(scores: dict[str, Any], total: int) -> list[Table]:
    """Return the scores in percent with 95 % intervals; `total` is the number of questions in the gold file."""
    questions, changed = scores["questions"], scores["questions_changed"]

    def cell(interval: dict[str, float] | None) -> str:
        return percent(None) if interval is None else percent_interval(**interval)

    rows = [
        (name, n, cell(scores[key]), cell(scores["corrected"][key]), cell(scores[f"baseline_{key}"]))
        for name, n, key in (
            ("all questions", questions, "accuracy"),
            ("changed boxes", changed, "accuracy_changed"),
            ("unchanged boxes", questions - changed, "accuracy_unchanged"),
        )
    ]
    whole = scores["state_accuracy"], scores["corrected"]["state_accuracy"]
    rows.append(("whole states", scores["states"], cell(whole[0]), cell(whole[1]), ""))
    detail = [
        (str(row["numops"]), ("no", "yes")[row["changed"]], row["n"], *(cell(row[rule]) for rule in _RULES))
        for row in scores["by_numops"]
    ]
    scored = f"{questions:,} questions" if questions == total else f"{questions:,} of {total:,} questions"
    columns = ("n", "accuracy", "corrected", "random baseline")
    title = f"Boxes, {scored}: percent with 95 % intervals; unparsed {percent(scores['unparsed'])} %"
    return [
        Table.of(("", *columns), rows, title),
        Table.of(("operations", "changed", *columns), detail, "By the number of operations that touched the box"),
    ]


def random_answers(questions: Sequence[BoxQuestion], seed: int) -> list[str]:
    rng = random.Random(f"{seed}/boxes/baseline")
    answers = []
    for question in questions:
        things = candidates(question)
        drawn = rng.sample(things, rng.randint(0, min(_MOST, len(things))))
        text = " and ".join(f"the {thing}" for thing in drawn) or "nothing"
        answers.append(in_words_of_t5(text) if question.form == "t5" else text)
    return answers


def candidates(question: BoxQuestion) -> list[str]:
    """Return the things named in clauses and operations that name the box.

    A noun without modifier stands for all things of the description that have one.
    """
    operations = question.description.removesuffix(".").split(". ")[1:]
    things = _things(". ".join(mentions([*clauses(question.description), *operations], question.box)))
    full: dict[str, list[str]] = {}
    for thing in _things(question.description):
        if " " in thing:
            full.setdefault(thing.split()[-1], []).append(thing)
    return list(dict.fromkeys(name for thing in things for name in full.get(thing, [thing])))


def _things(text: str) -> list[str]:
    things = (thing.rstrip(",.") for thing in _THING.findall(text))
    return list(dict.fromkeys(thing for thing in things if thing != "contents"))


def plot(scores: dict[str, Any]) -> str:
    """Return the paper's plot as SVG: the model's and the baseline's accuracy with 95 % intervals."""
    with mpl.rc_context(STYLE):
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
        return svg_text(figure, "boxes")
