"""States before and after a step, of a given attribute of a given entity: exact match and BERTScore.

The official gold keeps only the first of the accepted states of each field; the corrected score takes any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from d2e_sft.util.errors import UserError
from eval.systems.openpi2.bertscore import Scorer
from eval.systems.openpi2.gold import Procedure, alternatives, read_procedures
from eval.systems.openpi2.predictions import StatePair, chosen
from eval.systems.openpi2.reading import read_json


@dataclass(frozen=True)
class GoldState:
    """One gold change: mentions of entity and attribute, and the accepted states."""

    entity: tuple[str, ...]
    attribute: tuple[str, ...]
    before: tuple[str, ...]
    after: tuple[str, ...]


def states_by_step(procedure: Procedure) -> list[list[GoldState]]:
    """The changes of each step, in the order of the official states files: by entity, then as annotated."""
    return [
        [
            GoldState(alternatives(states.entity), alternatives(change.attribute), change.before, change.after)
            for states in procedure.states
            for change in states.steps[place]
        ]
        for place in range(len(procedure.steps))
    ]


def read_gold_states(path: Path) -> dict[str, list[list[GoldState]]]:
    """Gold states of `dev-ranked.json`, or of a file in the official format of predictions.

    Raises:
        UserError: the file is missing or damaged.
    """
    root = read_json(path)
    if not all(isinstance(value, list) for value in root.value.values()):
        return {key: states_by_step(procedure) for key, procedure in read_procedures(path).items()}
    gold: dict[str, list[list[GoldState]]] = {}
    for key, node in root.members():
        gold[key] = []
        for step in node.items():
            fields = [item.texts() for item in step.items()]
            wrong = next((item for item in step.items() if len(item.texts()) != 4), None)
            if wrong is not None:
                raise wrong.wrong("entity, attribute, before and after")
            gold[key].append([GoldState(*map(alternatives, texts)) for texts in fields])
    return gold


def check_aligned(
    predictions: Mapping[str, Sequence[Sequence[StatePair]]],
    gold: Mapping[str, Sequence[Sequence[GoldState]]],
    path: Path,
) -> None:
    """Refuse predictions that do not have one item for each gold change.

    Raises:
        UserError: the first place where the two differ.
    """
    chosen(predictions, gold, path)
    for key, steps in predictions.items():
        for place, (step, gold_step) in enumerate(zip(steps, gold[key], strict=True)):
            if len(step) != len(gold_step):
                raise UserError(
                    f"{path}, {key}[{place}]: got {len(step)} predictions; expected one for each of the "
                    f"{len(gold_step)} gold changes of step {place + 1}",
                    remedy="the official predictions are for dev-ranked.json, which has 1,324 changes; name that file",
                )


def _pairs(
    predictions: Mapping[str, Sequence[Sequence[StatePair]]], gold: Mapping[str, Sequence[Sequence[GoldState]]]
) -> list[tuple[StatePair, GoldState]]:
    return [
        pair
        for key, steps in predictions.items()
        for step, gold_step in zip(steps, gold[key], strict=True)
        for pair in zip(step, gold_step, strict=True)
    ]


def exact_matches(
    predictions: Mapping[str, Sequence[Sequence[StatePair]]],
    gold: Mapping[str, Sequence[Sequence[GoldState]]],
    *,
    any_alternative: bool,
) -> list[bool]:
    """Whether both states of each change are exactly a gold one, letter by letter.

    Args:
        any_alternative: take any of the accepted states; officially it is the first.
    """
    kept = None if any_alternative else 1
    return [
        predicted.before in state.before[:kept] and predicted.after in state.after[:kept]
        for predicted, state in _pairs(predictions, gold)
    ]


def states_bertscore(
    predictions: Mapping[str, Sequence[Sequence[StatePair]]],
    gold: Mapping[str, Sequence[Sequence[GoldState]]],
    scorer: Scorer,
) -> float:
    """Mean F1 of all states before and after, each against the first accepted one."""
    pairs = _pairs(predictions, gold)
    candidates = [text for predicted, _ in pairs for text in (predicted.before, predicted.after)]
    references = [text for _, state in pairs for text in (state.before[0], state.after[0])]
    scores = scorer(candidates, references)
    return sum(scores) / len(scores) if scores else 0.0
