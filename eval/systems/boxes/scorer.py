"""Accuracy by the number of operations that touched the box, for changed and unchanged boxes (section 4.3).

The official script decides what is correct; the corrected scores compare meanings (`answers.py`). The paper's
random baseline draws 0 to 3 of the things named in the same clauses as the box (section 4.1).
"""

from __future__ import annotations

import io
import random
import re
from collections.abc import Mapping, Sequence
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
    """Return all scores as fractions: by the official rule, and under `corrected` by the corrected one.

    Args:
        predictions: the text about each question's box; None without an answer.
        baseline: the random answers.
        boxes: number of questions in a whole state; the state accuracy leaves out parts of states.
    """
    pairs = list(zip(predictions, questions, strict=True))
    hits = [officially(text, question) for text, question in pairs]
    chance = [officially(text, question) for text, question in zip(baseline, questions, strict=True)]
    meant = [right(text, question.answer) for text, question in pairs]

    def accuracies(name: str, own: Sequence[bool]) -> dict[str, Any]:
        kinds = {"": (True, False), "_changed": (True,), "_unchanged": (False,)}
        chosen = {
            kind: [hit for hit, question in zip(own, questions, strict=True) if question.changed in wanted]
            for kind, wanted in kinds.items()
        }
        return {f"{name}{kind}": _mean(values, seed) for kind, values in chosen.items()}

    return {
        **accuracies("accuracy", hits),
        "state_accuracy": _mean(_whole(questions, hits, boxes), seed),
        "corrected": {
            **accuracies("accuracy", meant),
            "state_accuracy": _mean(_whole(questions, meant, boxes), seed),
        },
        **accuracies("baseline_accuracy", chance),
        "unparsed": sum(text is None for text in predictions) / len(predictions),
        "questions": len(questions),
        "questions_changed": sum(question.changed for question in questions),
        "states": len(_whole(questions, hits, boxes)),
        "by_numops": _by_numops(questions, {"accuracy": hits, "corrected": meant, "baseline": chance}, seed),
    }


def officially(text: str | None, question: Question) -> bool:
    """Return whether the official script counts a text as correct."""
    return right_officially(text, question.answer, t5=question.form == "t5")


def _whole(questions: Sequence[Question], hits: Sequence[bool], boxes: int) -> list[bool]:
    """Return for each whole state whether all its boxes are correct."""
    by_line = {question.line: hit for question, hit in zip(questions, hits, strict=True)}
    return [all(by_line[question.line] for question in state) for state in states(questions) if len(state) == boxes]


def measures(questions: Sequence[Question], predictions: Sequence[str | None], *, boxes: int) -> list[Measure]:
    """Return accuracies state by state, because the boxes of a state are asked together; `boxes` is their number."""
    groups = {str(state[0].line): state for state in states(questions)}
    gold = digest([(q.line, q.description, q.box, q.answer) for q in questions])
    texts = {question.line: text for text, question in zip(predictions, questions, strict=True)}
    official = {q.line: officially(texts[q.line], q) for q in questions}
    meant = {q.line: right(texts[q.line], q.answer) for q in questions}
    named: list[tuple[str, Mapping[int, bool], Sequence[bool]]] = [
        ("accuracy", official, (True, False)),
        ("accuracy, changed boxes", official, (True,)),
        ("accuracy, unchanged boxes", official, (False,)),
        ("whole states", official, ()),
        ("accuracy, corrected", meant, (True, False)),
    ]
    found = []
    for name, hits, changed in named:
        chosen = {item: [hits[q.line] for q in state if q.changed in changed] for item, state in groups.items()}
        counts = {item: (sum(own), len(own)) for item, own in chosen.items()}
        if name == "whole states":
            whole = {item: state for item, state in groups.items() if len(state) == boxes}
            counts = {item: (all(hits[q.line] for q in state), 1) for item, state in whole.items()}
        found += measure(name, "share", "states", gold, counts)
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
        [
            str(row["numops"]),
            "yes" if row["changed"] else "no",
            f"{row['n']:,}",
            *(_percent(row[key]) for key in ("accuracy", "corrected", "baseline")),
        ]
        for row in scores["by_numops"]
    ]
    scored = f"{questions:,} questions" if questions == total else f"{questions:,} of {total:,} questions"
    columns = ("n", "accuracy", "corrected", "random baseline")
    return [
        Table.of(
            ("", *columns),
            rows,
            f"Boxes, {scored}: percent with 95 % bootstrap intervals; unparsed {percent(scores['unparsed'])} %",
        ),
        Table.of(("operations", "changed", *columns), detail, "By the number of operations that touched the box"),
    ]


def _by_numops(questions: Sequence[Question], hits: Mapping[str, Sequence[bool]], seed: int) -> list[dict[str, Any]]:
    """Return accuracies by number of operations, of changed boxes and then of the others."""
    rows = []
    for changed in (True, False):
        places = [i for i, question in enumerate(questions) if question.changed == changed]
        for numops in sorted({questions[i].numops for i in places}):
            here = [i for i in places if questions[i].numops == numops]
            means = {name: _mean([values[i] for i in here], seed) for name, values in hits.items()}
            rows.append({"numops": numops, "changed": changed, "n": len(here), **means})
    return rows


def _mean(values: Sequence[bool], seed: int) -> dict[str, float] | None:
    return asdict(bootstrap_average([values], seed=seed)) if values else None


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
