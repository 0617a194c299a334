"""Entity states that another model predicted, as a JSON file: procedure id → step → list of changes.

    {"1": {"2": [{"entity": "the pan", "attribute": "hot", "change": "more likely"}]}}

Steps count from 1; a step without changes may be left out. `change` is `more likely` (the attribute holds after the
step) or `less likely` (it no longer does).
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from d2e_sft.util.errors import UserError
from eval.systems.crepe.gold import EntityChange, Procedure
from eval.systems.crepe.labels import LABELS, LESS, MORE
from eval.systems.json_file import expect_list, expect_object, expect_text, read_json, shown

# Section 5.3: so many states a step fit the prompt, drawn uniformly.
MOST_A_STEP = 5
_CHANGES = (LABELS[MORE], LABELS[LESS])
_ARTICLES = ("the", "a", "an", "my", "your", "his", "her", "their", "our")

# By procedure: the changes after each step.
States = Mapping[str, Sequence[Sequence[EntityChange]]]


def gold_states(procedures: Sequence[Procedure]) -> dict[str, list[tuple[EntityChange, ...]]]:
    """The annotated entity changes, in the file's order."""
    return {procedure.id: [block.entities for block in procedure.blocks] for procedure in procedures}


def read_states(path: Path, procedures: Sequence[Procedure]) -> dict[str, list[list[EntityChange]]]:
    """Read a file of predicted states for the procedures of a split.

    Raises:
        UserError: the file is damaged, lacks a procedure, or names a procedure or step that there is not.
    """
    content = expect_object(read_json(path), str(path))
    known = {procedure.id: procedure for procedure in procedures}
    _refuse_other_names(path, content, known)
    return {
        name: _steps(expect_object(content[name], f"{path}, procedure {name!r}"), procedure, path)
        for name, procedure in known.items()
    }


def write_states(states: States) -> str:
    """The content of such a file."""
    content = {
        name: {
            str(number): [vars(change) for change in changes]
            for number, changes in enumerate(steps, start=1)
            if changes
        }
        for name, steps in states.items()
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def fitting_states(
    procedure: Procedure, states: Sequence[Sequence[EntityChange]], seed: int
) -> list[list[EntityChange]]:
    """What of the predicted states is shown (section 5.3): entities that an event mentions, at most 5 a step."""
    rng = random.Random(f"{seed}/{procedure.id}")
    chosen = []
    for changes in states:
        fitting = [change for change in changes if any(mentions(event, change.entity) for event in procedure.events)]
        drawn = sorted(rng.sample(range(len(fitting)), min(MOST_A_STEP, len(fitting))))
        chosen.append([fitting[place] for place in drawn])
    return chosen


def mentions(event: str, entity: str) -> bool:
    """Whether the event's sentence holds the entity's words in a row, article and letter case aside."""
    words, sentence = ([*re.findall(r"\w+", text.casefold())] for text in (entity, event))
    if len(words) > 1 and words[0] in _ARTICLES:
        words = words[1:]
    return bool(words) and any(sentence[i : i + len(words)] == words for i in range(len(sentence)))


def _refuse_other_names(path: Path, content: dict[str, Any], known: Mapping[str, Procedure]) -> None:
    for what, names in (
        ("is not in this split", [name for name in content if name not in known]),
        ("is missing", [name for name in known if name not in content]),
    ):
        if names:
            raise UserError(
                f"{path}: procedure {names[0]!r} {what} ({len(names)} such); expected states for each of the split's "
                f"{len(known)} procedures",
                remedy="give the states of the split that is read (--set split=dev or test); {} stands for no states",
            )


def _steps(row: dict[str, Any], procedure: Procedure, path: Path) -> list[list[EntityChange]]:
    count = len(procedure.blocks)
    for number in row:
        if not (number.isdecimal() and 1 <= int(number) <= count):
            raise UserError(
                f"{path}, procedure {procedure.id!r}: step {number!r}: got no step of it; expected 1 to {count}"
            )
    steps: list[list[EntityChange]] = [[] for _ in range(count)]
    for number, changes in row.items():
        place = f"{path}, procedure {procedure.id!r}, step {number}"
        steps[int(number) - 1] = [_change(expect_object(item, place), place) for item in expect_list(changes, place)]
    return steps


def _change(row: dict[str, Any], place: str) -> EntityChange:
    if row.get("change") not in _CHANGES:
        raise UserError(f"{place}: change: got {shown(row.get('change'))}; expected {' or '.join(_CHANGES)}")
    return EntityChange(expect_text(row, "entity", place), expect_text(row, "attribute", place), row["change"])
