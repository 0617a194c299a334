"""Accuracy by the number of operations that touched the box, changed and unchanged boxes apart (section 4.3).

What is right is what the official script counts as right; the corrected scores compare what is meant (`answers.py`).
Beside them stands the paper's random baseline: 0 to 3 of the things named in the same clauses as the box (section
4.1).
"""

from __future__ import annotations

import io
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from d2e_sft.util.html.figures import COLOURS, LINES, STYLE
from d2e_sft.util.table import Table, percent, percent_interval
from eval.compare.measures.measure import Measure, digest, measure
from eval.score.statistics import bootstrap_average
from eval.systems.boxes.answers import MODIFIERS, in_words_of_t5, right, right_officially
from eval.systems.boxes.gold import Question, clauses, mentions, states

_MOST = 3
_THING = re.compile(rf"\b[Tt]he ((?:(?:{'|'.join(MODIFIERS)}) )?\S+)")


def score(
    questions: Sequence[Question], predictions: Sequence[str | None], baseline: Sequence[str], *, boxes: int, seed: int
) -> dict[str, Any]:
    """All scores, as fractions: of the official rule, and under `corrected` those of the corrected one.

    Args:
        predictions: what is said of each question's box; None where nothing was said.
        baseline: the random answers.
        boxes: how many questions a whole state has; parts of states are left out of the state accuracy.
    """
    hits, chance = (
        [right_officially(text, q.answer, t5=q.form == "t5") for text, q in zip(texts, questions, strict=True)]
        for texts in (predictions, baseline)
    )
    meant = [right(text, question.answer) for text, question in zip(predictions, questions, strict=True)]
    changed = [question.changed for question in questions]
    return {
        **_accuracies("accuracy", hits, changed, seed),
        "state_accuracy": _mean(_whole(questions, hits, boxes), seed),
        "corrected": {
            **_accuracies("accuracy", meant, changed, seed),
            "state_accuracy": _mean(_whole(questions, meant, boxes), seed),
        },
        **_accuracies("baseline_accuracy", chance, changed, seed),
        "unparsed": sum(text is None for text in predictions) / len(predictions),
        "questions": len(questions),
        "questions_changed": sum(changed),
        "states": len(_whole(questions, hits, boxes)),
        "by_numops": _by_numops(questions, {"accuracy": hits, "corrected": meant, "baseline": chance}, seed),
    }


def _whole(questions: Sequence[Question], hits: Sequence[bool], boxes: int) -> list[bool]:
    """Of each state that is whole: whether all its boxes are right."""
    by_line = {question.line: hit for question, hit in zip(questions, hits, strict=True)}
    return [all(by_line[question.line] for question in state) for state in states(questions) if len(state) == boxes]


def measures(questions: Sequence[Question], predictions: Sequence[str | None], *, boxes: int) -> list[Measure]:
    """Accuracies state by state, since the boxes of a state are asked for together and hang together.

    Args:
        boxes: how many questions a whole state has.
    """
    groups = {str(state[0].line): state for state in states(questions)}
    gold = digest([(q.line, q.description, q.box, q.answer) for q in questions])
    pairs = list(zip(predictions, questions, strict=True))
    official = {q.line: right_officially(text, q.answer, t5=q.form == "t5") for text, q in pairs}
    meant = {q.line: right(text, q.answer) for text, q in pairs}

    def counted(name: str, hits: Mapping[int, bool], kept: Callable[[Question], bool]) -> list[Measure]:
        chosen = {item: [hits[q.line] for q in state if kept(q)] for item, state in groups.items()}
        counts = {item: (sum(own), len(own)) for item, own in chosen.items()}
        return measure(name, "share", "states", gold, counts)

    whole = {item: (all(official[q.line] for q in state), 1) for item, state in groups.items() if len(state) == boxes}
    return [
        *counted("accuracy", official, lambda _: True),
        *counted("accuracy, changed boxes", official, lambda q: q.changed),
        *counted("accuracy, unchanged boxes", official, lambda q: not q.changed),
        *measure("whole states", "share", "states", gold, whole),
        *counted("accuracy, corrected", meant, lambda _: True),
    ]


def tables(scores: dict[str, Any], total: int) -> list[Table]:
    """The scores in percent with 95 % intervals.

    Args:
        total: questions of the gold file.
    """
    questions, changed = scores["questions"], scores["questions_changed"]
    rows = [
        (
            name,
            f"{n:,}",
            *(_percent(found) for found in (scores[key], scores["corrected"][key], scores[f"baseline_{key}"])),
        )
        for name, n, key in (
            ("all questions", questions, "accuracy"),
            ("changed boxes", changed, "accuracy_changed"),
            ("unchanged boxes", questions - changed, "accuracy_unchanged"),
        )
    ]
    whole = (_percent(scores["state_accuracy"]), _percent(scores["corrected"]["state_accuracy"]), "")
    detail = [
        (
            str(row["numops"]),
            "yes" if row["changed"] else "no",
            f"{row['n']:,}",
            *(_percent(row[key]) for key in ("accuracy", "corrected", "baseline")),
        )
        for row in scores["by_numops"]
    ]
    scored = f"{questions:,} questions" if questions == total else f"{questions:,} of {total:,} questions"
    columns = ("n", "accuracy", "corrected", "random baseline")
    return [
        Table.of(
            ("", *columns),
            [*rows, ("whole states", f"{scores['states']:,}", *whole)],
            f"Boxes, {scored}: percent with 95 % bootstrap intervals; unparsed {percent(scores['unparsed'])} %",
        ),
        Table.of(("operations", "changed", *columns), detail, "By the number of operations that touched the box"),
    ]


def _by_numops(questions: Sequence[Question], hits: Mapping[str, Sequence[bool]], seed: int) -> list[dict[str, Any]]:
    """Accuracies over the questions with as many operations, of changed boxes and then of the others."""
    rows = []
    for changed in (True, False):
        places = [i for i, question in enumerate(questions) if question.changed == changed]
        for numops in sorted({questions[i].numops for i in places}):
            here = [i for i in places if questions[i].numops == numops]
            means = {name: _mean([values[i] for i in here], seed) for name, values in hits.items()}
            rows.append({"numops": numops, "changed": changed, "n": len(here), **means})
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
    drawn = (_draw(candidates(question), rng) for question in questions)
    return [in_words_of_t5(text) if q.form == "t5" else text for text, q in zip(drawn, questions, strict=True)]


def candidates(question: Question) -> list[str]:
    """The things named in clauses and operations that name the box.

    A noun alone stands for all things of the description that have a modifier before it, where there are some.
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
