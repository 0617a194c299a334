"""The official evaluator's scores of explanations, where a prediction says which sentences of the paragraph carry it.

An explanation is `{"di": …, "i": …, "j": …}`: the cause acts on sentence i in the direction di, and so on sentence j,
which acts on the effect in the direction de (the answer). Four shares of right ones, with the evaluator's names: EQDIR
(de), XDIR (di), XSENTID (i), YSENTID (j). A prediction without a field is right where gold has none either.

The published evaluator never reads di (it looks for the field in the word "explanation"), so that its XDIR is always
1; here XDIR compares what the files say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from d2e_sft.util.errors import UserError
from d2e_sft.util.table import Table, percent
from eval.systems.flat.lines import read_lines
from eval.systems.json_file import shown
from eval.systems.wiqa.questions import LABELS, TYPES, Answers, Label, Question, label_of, question_id

METRICS = ("EQDIR", "XDIR", "XSENTID", "YSENTID")


@dataclass(frozen=True)
class Explanation:
    """Which sentences carry an answer; None where nothing is said.

    Attributes:
        direction: of the influence on sentence i (di).
        i, j: numbers of the sentences, as the files count them.
    """

    direction: Label | None
    i: int | None
    j: int | None


def read_explanations(path: Path) -> dict[str, Explanation]:
    """Question id → its explanation, of a file of questions or of predictions; of the lines that have one.

    Raises:
        UserError: a line is damaged; place, value and expectation are named.
    """
    found = {}
    for place, row in read_lines(path):
        value = row.get("explanation")
        if isinstance(value, dict) and not value.keys().isdisjoint(("di", "i", "j")):
            found[question_id(row, place)] = _explanation(value, f"{place}, explanation")
    return found


def _explanation(row: Mapping[str, Any], place: str) -> Explanation:
    said = row.get("di")
    direction = label_of(said) if isinstance(said, str) and said else None
    if direction is None and said not in (None, ""):
        raise UserError(f"{place}.di: got {shown(said)}; expected one of {', '.join(LABELS)}, or null")
    sentences = {name: row.get(name) for name in ("i", "j")}
    for name, value in sentences.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise UserError(f"{place}.{name}: got {shown(value)}; expected the number of a sentence, or null")
    return Explanation(direction, **sentences)


def score_explanations(
    questions: Sequence[Question],
    answers: Answers,
    gold: Mapping[str, Explanation],
    predicted: Mapping[str, Explanation],
) -> dict[str, Any]:
    """The four shares over the answered questions that have a gold explanation, overall and by type of question.

    Args:
        gold, predicted: by question id. A question without a predicted explanation says nothing.
    """
    nothing = Explanation(None, None, None)
    judged = [
        (question.type, _right(question, answers[question.id], gold[question.id], predicted.get(question.id, nothing)))
        for question in questions
        if question.id in answers and question.id in gold
    ]
    by_type = {name: _shares([right for kind, right in judged if kind == code]) for code, name in TYPES.items()}
    return {
        **_shares([right for _, right in judged]),
        "by_type": by_type,
        "without_gold": sum(question.id in answers and question.id not in gold for question in questions),
        "without_prediction": sum(question.id in answers and question.id not in predicted for question in questions),
    }


def _right(question: Question, answer: Label | None, gold: Explanation, found: Explanation) -> tuple[bool, ...]:
    return answer == question.answer, found.direction == gold.direction, found.i == gold.i, found.j == gold.j


def _shares(rights: Sequence[tuple[bool, ...]]) -> dict[str, Any]:
    shares = {
        name: sum(right[place] for right in rights) / len(rights) if rights else None
        for place, name in enumerate(METRICS)
    }
    return {**shares, "questions": len(rights)}


def explanation_table(scores: Mapping[str, Any]) -> Table:
    """The shares by type and overall."""
    parts = {**scores["by_type"], "all": scores}
    rows = [[name, *(percent(row[key]) for key in METRICS), str(row["questions"])] for name, row in parts.items()]
    left_out = f", {scores['without_gold']} questions without a gold one left out" * bool(scores["without_gold"])
    silent = f", {scores['without_prediction']} predictions without one" * bool(scores["without_prediction"])
    return Table.of(["type", *METRICS, "questions"], rows, f"Explanations, %{left_out}{silent}")
