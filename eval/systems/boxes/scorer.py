"""Accuracy by the number of operations that touched the box, changed and unchanged boxes apart (section 4.3).

Beside it stands the paper's random baseline: 0 to 3 of the things named in the same clauses as the box (section 4.1).
"""

from __future__ import annotations

import io
import random
import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from d2e_sft.util.html.figures import COLOURS, LINES, STYLE
from d2e_sft.util.tables import percent, percent_interval
from eval.score.statistics import bootstrap_average
from eval.systems.boxes.gold import Question, clauses, mentions, right, states
from eval.systems.system import ScoreTable

_MOST = 3


def score(
    questions: Sequence[Question], predictions: Sequence[str | None], baseline: Sequence[str], *, boxes: int, seed: int
) -> dict[str, Any]:
    """All scores, as fractions.

    Args:
        predictions: what is said of each question's box; None where nothing was said.
        baseline: the random answers.
        boxes: how many questions a whole state has; parts of states are left out of the state accuracy.
    """
    hits = [right(text, question.answer) for text, question in zip(predictions, questions, strict=True)]
    chance = [right(text, question.answer) for text, question in zip(baseline, questions, strict=True)]
    by_line = {question.line: hit for question, hit in zip(questions, hits, strict=True)}
    whole = [all(by_line[question.line] for question in state) for state in states(questions) if len(state) == boxes]
    changed = [question.changed for question in questions]
    return {
        **_accuracies("accuracy", hits, changed, seed),
        "state_accuracy": _mean(whole, seed),
        **_accuracies("baseline_accuracy", chance, changed, seed),
        "unparsed": sum(text is None for text in predictions) / len(predictions),
        "questions": len(questions),
        "questions_changed": sum(changed),
        "states": len(whole),
        "by_numops": _by_numops(questions, hits, chance, seed),
    }


def tables(scores: dict[str, Any]) -> list[ScoreTable]:
    """The scores in percent with 95 % intervals."""
    questions, changed = scores["questions"], scores["questions_changed"]
    rows = [
        (name, f"{n:,}", _percent(scores[f"accuracy{kind}"]), _percent(scores[f"baseline_accuracy{kind}"]))
        for name, n, kind in (
            ("all questions", questions, ""),
            ("changed boxes", changed, "_changed"),
            ("unchanged boxes", questions - changed, "_unchanged"),
        )
    ]
    rows.append(("whole states", f"{scores['states']:,}", _percent(scores["state_accuracy"]), ""))
    detail = []
    for row in scores["by_numops"]:
        accuracies = _percent(row["accuracy"]), _percent(row["baseline"])
        detail.append((str(row["numops"]), "yes" if row["changed"] else "no", f"{row['n']:,}", *accuracies))
    return [
        ScoreTable(
            f"Boxes: percent with 95 % bootstrap intervals; unparsed {percent(scores['unparsed'])} %",
            ("", "n", "accuracy", "random baseline"),
            rows,
        ),
        ScoreTable(
            "By the number of operations that touched the box",
            ("operations", "changed", "n", "accuracy", "random baseline"),
            detail,
            left=("changed",),
        ),
    ]


def _by_numops(
    questions: Sequence[Question], hits: Sequence[bool], chance: Sequence[bool], seed: int
) -> list[dict[str, Any]]:
    """Accuracy over the questions with as many operations, of changed boxes and then of the others."""
    rows = []
    for changed in (True, False):
        places = [i for i, question in enumerate(questions) if question.changed == changed]
        for numops in sorted({questions[i].numops for i in places}):
            here = [i for i in places if questions[i].numops == numops]
            own, random = _mean([hits[i] for i in here], seed), _mean([chance[i] for i in here], seed)
            rows.append({"numops": numops, "changed": changed, "n": len(here), "accuracy": own, "baseline": random})
    return rows


def _accuracies(name: str, hits: Sequence[bool], changed: Sequence[bool], seed: int) -> dict[str, Any]:
    scores = {name: _mean(hits, seed)}
    for kind, wanted in (("changed", True), ("unchanged", False)):
        scores[f"{name}_{kind}"] = _mean([hit for hit, own in zip(hits, changed, strict=True) if own == wanted], seed)
    return scores


def _mean(values: Sequence[bool], seed: int) -> dict[str, float] | None:
    return asdict(bootstrap_average([values], seed=seed)) if values else None


def _percent(interval: dict[str, float] | None) -> str:
    return percent(None) if interval is None else percent_interval(**interval)


def random_answers(questions: Sequence[Question], seed: int) -> list[str]:
    """A random answer to each question."""
    rng = random.Random(f"{seed}/boxes/baseline")
    return [_draw(candidates(question), rng) for question in questions]


def candidates(question: Question) -> list[str]:
    """The things named in clauses and operations that name the box."""
    operations = question.description.removesuffix(".").split(". ")[1:]
    texts = mentions([*clauses(question.description), *operations], question.box)
    things = (thing for text in texts for thing in re.findall(r"\b[Tt]he (\S+)", text))
    return list(dict.fromkeys(thing.rstrip(",.") for thing in things if thing != "contents"))


def _draw(things: Sequence[str], rng: random.Random) -> str:
    count = rng.randint(0, min(_MOST, len(things)))
    return " and ".join(f"the {thing}" for thing in rng.sample(things, count)) or "nothing"


def plot(scores: dict[str, Any]) -> str:
    """The paper's plot as an SVG file: the model's and the baseline's accuracy with 95 % intervals."""
    with mpl.rc_context({**STYLE, "svg.hashsalt": "boxes"}):
        figure = Figure(figsize=(9, 3.6), layout="constrained")
        axes = figure.subplots(1, 2, sharey=True)
        for panel, changed in zip(axes, (True, False), strict=True):
            rows = [row for row in scores["by_numops"] if row["changed"] == changed]
            for index, (name, key) in enumerate((("model", "accuracy"), ("random baseline", "baseline"))):
                _curve(panel, name, index, rows, key)
            panel.set_title(f"{'changed' if changed else 'unchanged'} boxes")
            panel.set_xlabel("operations that touched the box")
            panel.set_ylim(-0.02, 1.02)
        axes[0].set_ylabel("accuracy")
        axes[0].legend(frameon=False)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def _curve(panel: Any, name: str, index: int, rows: Sequence[dict[str, Any]], key: str) -> None:
    means = [row[key]["mean"] for row in rows]
    below = [max(row[key]["mean"] - row[key]["low"], 0) for row in rows]
    above = [max(row[key]["high"] - row[key]["mean"], 0) for row in rows]
    panel.errorbar(
        [row["numops"] for row in rows],
        means,
        yerr=[below, above],
        label=name,
        color=COLOURS[index],
        linestyle=LINES[index],
        marker="o",
        markersize=3,
        capsize=2,
    )
