"""Complete sentences "ATTRIBUTE of ENTITY was BEFORE before and AFTER after" against those of each changing entity.

Officially a prediction is right where it is part of any gold sentence of its step, which the empty string always is;
the corrected score wants the whole sentence, takes any accepted state, and counts a distinct sentence once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from eval.systems.openpi2.figures import Figures
from eval.systems.openpi2.gold import Change, EntityStates, Procedure


def sentence(attribute: str, entity: str, before: str, after: str) -> str:
    """A state change in the words of the official files."""
    return f"{attribute} of {entity} was {before} before and {after} after"


def gold_sentences(procedure: Procedure, *, expanded: bool, any_state: bool = False) -> list[list[list[str]]]:
    """By step, for each entity that changes there: every sentence that its clusters' names make.

    Args:
        expanded: paraphrases are names, too.
        any_state: take any accepted state; officially it is the first.
    """
    return [
        [
            [text for change in states.steps[place] for text in _texts(procedure, states, change, expanded, any_state)]
            for states in procedure.states
            if states.steps[place]
        ]
        for place in range(len(procedure.steps))
    ]


def gold_schemata(procedure: Procedure, *, expanded: bool) -> list[list[list[str]]]:
    """By step, for each entity that changes there: every "ATTRIBUTE of ENTITY" that its clusters' names make."""
    return [
        [
            [
                f"{attribute} of {entity}"
                for change in states.steps[place]
                for entity, attribute in product(*_names(procedure, states, change, expanded))
            ]
            for states in procedure.states
            if states.steps[place]
        ]
        for place in range(len(procedure.steps))
    ]


def _names(
    procedure: Procedure, states: EntityStates, change: Change, expanded: bool
) -> tuple[Sequence[str], Sequence[str]]:
    cluster = procedure.clusters[states.entity]
    return cluster.names.of(expanded), cluster.attributes[change.attribute].of(expanded)


def _texts(procedure: Procedure, states: EntityStates, change: Change, expanded: bool, any_state: bool) -> list[str]:
    kept = None if any_state else 1
    fields = (*_names(procedure, states, change, expanded), change.before[:kept], change.after[:kept])
    return [sentence(attribute, entity, before, after) for entity, attribute, before, after in product(*fields)]


def score_complete(
    gold: Mapping[str, Procedure], predictions: Mapping[str, Sequence[Sequence[str]]], *, expanded: bool
) -> Figures:
    """Precision over predictions, recall over (entity, step) pairs: a prediction finds the first that it fits."""
    figures = Figures()
    for key, steps in predictions.items():
        for gold_step, step in zip(gold_sentences(gold[key], expanded=expanded), steps, strict=True):
            matches = [_first_holding(text, gold_step) for text in step]
            figures.predicted += len(step)
            figures.predicted_right += sum(match is not None for match in matches)
            figures.gold += len(gold_step)
            figures.gold_found += len({match for match in matches if match is not None})
    return figures


def _first_holding(text: str, gold_step: Sequence[Sequence[str]]) -> int | None:
    return next((i for i, sentences in enumerate(gold_step) if any(text in gold for gold in sentences)), None)


def score_complete_corrected(
    gold: Mapping[str, Procedure], predictions: Mapping[str, Sequence[Sequence[str]]], *, expanded: bool
) -> Figures:
    """The same for whole sentences, in lower case and without a full stop, each distinct one once."""
    figures = Figures()
    for key, steps in predictions.items():
        gold_steps = gold_sentences(gold[key], expanded=expanded, any_state=True)
        for gold_step, step in zip(gold_steps, steps, strict=True):
            wanted = [set(map(_plain, sentences)) for sentences in gold_step]
            texts = set(filter(None, map(_plain, step)))
            figures.predicted += len(texts)
            figures.predicted_right += len(texts & set().union(*wanted))
            figures.gold += len(wanted)
            figures.gold_found += sum(not texts.isdisjoint(sentences) for sentences in wanted)
    return figures


def _plain(text: str) -> str:
    return text.strip().rstrip(".").lower()
