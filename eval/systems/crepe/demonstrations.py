"""The solved procedures that few-shot prompts show: written for this package, in `demonstrations.yaml`."""

from __future__ import annotations

import random
from functools import cache

from pydantic import BaseModel, ConfigDict, model_validator

from eval.systems.conversations import wording
from eval.systems.crepe.gold import EQUALLY, LABELS, LESS, MORE, EntityChange


class DemonstrationEvent(BaseModel):
    """An event and the one entity state that decides about it; see the data file for the fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    event: str
    subevent: str
    entity: str
    attribute: str
    holds: list[bool]
    favours: bool
    because: str
    if_true: str
    if_false: str
    ask: str
    link: str

    def state(self, step: int) -> str:
        """Return the entity's state in words after a number of steps."""
        return self.if_true if self.holds[step] else self.if_false

    def is_likely(self, step: int) -> bool:
        """Return whether the event is likely after a number of steps."""
        return self.holds[step] == self.favours

    def label(self, step: int) -> int:
        """Return the label of step `step`, counted from 1, for the event."""
        return _change(self.is_likely(step - 1), self.is_likely(step))

    def state_label(self, step: int) -> int:
        """Return the label of step `step`, counted from 1, for the entity's state."""
        return _change(self.holds[step - 1], self.holds[step])


class Demonstration(BaseModel):
    """A procedure with its events."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    goal: str
    steps: list[str]
    events: list[DemonstrationEvent]

    @model_validator(mode="after")
    def _a_state_for_the_start_and_each_step(self) -> Demonstration:
        for event in self.events:
            if len(event.holds) != len(self.steps) + 1:
                raise ValueError(f"{event.event}: {len(event.holds)} states; expected {len(self.steps) + 1}")
        return self

    @property
    def entity_changes(self) -> list[list[EntityChange]]:
        """What each step changes, in the form of the gold file."""
        return [
            [
                EntityChange(event.entity, event.attribute, LABELS[label])
                for event in self.events
                if (label := event.state_label(step)) != EQUALLY
            ]
            for step in range(1, len(self.steps) + 1)
        ]


def drawn_demonstrations(count: int, seed: int, *, by_event: bool) -> list[Demonstration]:
    """Draw demonstrations in random order, like appendix A.

    Args:
        by_event: draw among all events, each with its procedure; a procedure may then come twice.
    """
    bank = list(load_demonstrations())
    if by_event:
        bank = [shown.model_copy(update={"events": [event]}) for shown in bank for event in shown.events]
    return random.Random(f"demonstrations/{seed}").sample(bank, count)


def _change(before: bool, after: bool) -> int:
    if before == after:
        return EQUALLY
    return MORE if after else LESS


@cache
def load_demonstrations() -> tuple[Demonstration, ...]:
    """Return all demonstrations, in the file's order."""
    return tuple(map(Demonstration.model_validate, wording("crepe/demonstrations")))
