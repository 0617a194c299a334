"""Entity states of any procedures, predicted as in the three tasks, for use elsewhere (paper section 4.3).

The model writes complete sentences for each step; the salience of their entities at that step is asked as in section
4.1. What is salient enough is then all that a prompt tells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from d2e_sft.data.chat_template import Form
from eval.systems.asker import Asker
from eval.systems.crepe.gold import LABELS, LESS, MORE, EntityChange, write_states
from eval.systems.openpi2.complete import parse_change, parse_sentences
from eval.systems.openpi2.gold import Procedures, sentence
from eval.systems.openpi2.metrics import mean
from eval.systems.openpi2.salience import ask_local
from eval.systems.openpi2.tracking import ask_listing
from eval.systems.system import SystemResult

_NO_CHANGE = "There will be no change."  # as OpenPI's training rows say it


@dataclass(frozen=True)
class StateChange:
    """One predicted change, and how salient its entity is at that step; None where that was not asked."""

    entity: str
    attribute: str
    before: str
    after: str
    salience: int | None = None

    @property
    def text(self) -> str:
        """As a sentence."""
        return sentence(self.attribute, self.entity, self.before, self.after)


# By procedure id: the changes of each step.
StateChanges = Mapping[str, Sequence[Sequence[StateChange]]]


def ask_entity_states(
    asker: Asker, form: Form, procedures: Procedures, *, with_salience: bool, **sampling: Any
) -> tuple[StateChanges, int]:
    """Return predicted changes by step, and the number of lines in the answers that are no such sentence."""
    replies = ask_listing(asker, "complete", form, procedures, name="entity-states", **sampling)
    changes, other = read_changes(replies)
    if not with_salience:
        return changes, other
    entities = {key: [list(dict.fromkeys(c.entity for c in step)) for step in steps] for key, steps in changes.items()}
    rated = ask_local(asker, procedures, entities, **sampling)
    with_ratings = {
        key: [
            [replace(change, salience=ratings[names.index(change.entity)]) for change in step]
            for step, names, ratings in zip(steps, entities[key], rated[key], strict=True)
        ]
        for key, steps in changes.items()
    }
    return with_ratings, other


def read_changes(replies: Mapping[str, Sequence[str]]) -> tuple[StateChanges, int]:
    """Return the changes in the replies about each step, and the number of lines that are no such sentence."""
    lines = {
        key: [[line for line in parse_sentences(reply) if line not in ("", _NO_CHANGE)] for reply in said]
        for key, said in replies.items()
    }
    parsed = {key: [[parse_change(line) for line in step] for step in steps] for key, steps in lines.items()}
    changes = {
        key: [list(dict.fromkeys(StateChange(*item) for item in step if item is not None)) for step in steps]
        for key, steps in parsed.items()
    }
    return changes, sum(item is None for steps in parsed.values() for step in steps for item in step)


def salient(changes: StateChanges, threshold: int) -> StateChanges:
    """Return the changes of entities whose salience at the step reaches the threshold."""
    return {
        key: [[c for c in step if c.salience is not None and c.salience >= threshold] for step in steps]
        for key, steps in changes.items()
    }


def entities_a_step(changes: StateChanges) -> float:
    """Return the mean number of entities that change at a step."""
    return mean(len({change.entity for change in step}) for steps in changes.values() for step in steps)


def crepe_entities_file(changes: StateChanges) -> str:
    """Return the changes in CREPE's form (`entities_file=`): what holds after a step, and what no longer does."""

    def converted(step: Sequence[StateChange]) -> list[EntityChange]:
        rows = [
            EntityChange(change.entity, state, LABELS[label])
            for change in step
            for state, label in ((change.after, MORE), (change.before, LESS))
            if label == MORE or state != change.after
        ]
        return list(dict.fromkeys(rows))

    return write_states({key: list(map(converted, steps)) for key, steps in changes.items()})


def with_other_lines(result: SystemResult, count: int) -> SystemResult:
    """Return the result with the number of lines in the answers that are no state change."""
    first, *others = result.tables
    if count:
        told = f"lines of the predicted entity states that are no state change, and are left out: {count}"
        first = replace(first, caption=f"{first.caption}; {told}")
    scores = {**result.scores, "lines_that_are_no_state_change": count}
    return replace(result, scores=scores, tables=[first, *others])
