"""Procedures in CREPE's file format, written for the tests, and an asker that answers by rule."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from eval.run.task import TaskItem
from eval.systems.benchmark import BenchmarkCall, BenchmarkResult
from eval.systems.crepe.benchmark import CREPE, CrepeOptions
from tests.eval.systems.files import OFFICIAL, save
from tests.factories import ScriptedAsker

Row = dict[str, str]


def step(text: str) -> Row:
    return {"type": "step", "step": text}


def event(text: str, change: str, kind: str = "event") -> Row:
    return {"type": kind, "event": text, "change": change}


def entity(name: str, attribute: str, change: str) -> Row:
    return {"type": "entity", "entity": name, "attribute": attribute, "change": change}


BURN, COLD, DARK = "I burn my hand on the kettle.", "The tea is cold.", "I find the door without a lamp."
GOLD: dict[str, Any] = OFFICIAL["crepe"]
TEA, LAMP = GOLD.values()
# [step][event], as the official scorer numbers labels.
LABELS = {"3": [[2, 0], [0, 0], [1, 2]], "5": [[1], [0]]}


def with_predictions(gold: Mapping[str, Any], changes: Mapping[tuple[str, int], Sequence[Row]]) -> dict[str, Any]:
    """The gold content with rows added to blocks, as the official code writes its outputs."""
    content: dict[str, Any] = json.loads(json.dumps(gold))
    for (name, block), rows in changes.items():
        content[name]["steps"][block] += rows
    return content


def run(
    folder: Path, rule: Callable[[TaskItem], str], *, by_likelihood: bool = False, seed: int = 0, **options: Any
) -> tuple[BenchmarkResult, ScriptedAsker]:
    """CREPE on the procedures above, answered by a rule."""
    save(folder / "data_dev_v2.json", GOLD)
    asker = ScriptedAsker(lambda name, chat: rule(chat))
    call = BenchmarkCall(folder, CrepeOptions(**options), None, seed, by_likelihood)
    return CREPE.run(call, asker), asker  # type: ignore[arg-type]


def last(chat: TaskItem) -> str:
    """What the model answers to."""
    return chat.messages[-1]["content"]
