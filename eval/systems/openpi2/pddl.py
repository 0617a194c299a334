"""Planning from text: a model writes a PDDL domain and problem, a planner judges them (paper section 4.3.2)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from d2e_sft.data.chat_template import Messages
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import load_yaml
from eval.run.engines.conversation_task import Conversation
from eval.systems.asker import Asker
from eval.systems.openpi2.entity_states import StateChange, StateChanges
from eval.systems.openpi2.gold import Procedure
from eval.systems.openpi2.planner import OUTCOMES, Planner, Verdict
from eval.systems.openpi2.reading import Node
from eval.systems.openpi2.tables import cell
from eval.systems.openpi2.tracking import DATASET
from eval.systems.openpi2.wording import turns, wording
from eval.systems.system import ScoreTable, SystemResult

OWN_PROCEDURES = Path(__file__).parent / "prompts" / "pddl_procedures.yaml"
_TOKENS = 1024
_FIELDS = ("domain", "problem")


@dataclass(frozen=True)
class PlanningTask:
    """A procedure and what is to be planned with its steps."""

    procedure: Procedure
    task: str


@dataclass(frozen=True)
class Written:
    """The two files of a reply; empty where it has none."""

    domain: str
    problem: str


def read_tasks(path: Path) -> dict[str, PlanningTask]:
    """Planning tasks by id, of a YAML or JSON list of `{id, goal, steps, task}`.

    Raises:
        UserError: the file is missing or damaged.
    """
    try:
        root = Node(load_yaml(path.read_text(encoding="utf-8")), path)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path}: is not readable as YAML or JSON ({error})") from None
    tasks: dict[str, PlanningTask] = {}
    for node in root.items():
        key = node["id"].text()
        if key in tasks:
            raise node["id"].wrong("an id of its own")
        tasks[key] = PlanningTask(Procedure(key, node["goal"].text(), node["steps"].texts(), ()), node["task"].text())
    return tasks


def tasks_file(tasks: Mapping[str, PlanningTask]) -> str:
    """The same as JSON, to score predictions against."""
    rows = [
        {"id": key, "goal": item.procedure.goal, "steps": item.procedure.steps, "task": item.task}
        for key, item in tasks.items()
    ]
    return json.dumps(rows, indent=2, ensure_ascii=False) + "\n"


def pddl_prompt(
    task: PlanningTask, states: Sequence[Sequence[StateChange]] | None, *, hidden: bool = False
) -> Messages:
    """The request for both files, in the imagined view without goal, steps and what they change."""
    told = wording("pddl")
    if hidden:
        return turns(told["hidden_request"].format(task=task.task))
    lines = []
    for place, step in enumerate(task.procedure.steps):
        lines.append(told["step"].format(number=place + 1, step=step))
        if states is not None and states[place]:
            lines.append(told["states"].format(states="; ".join(change.text for change in states[place])))
    return turns(told["request"].format(goal=task.procedure.goal, steps="\n".join(lines), task=task.task))


def ask_pddl(
    asker: Asker, tasks: Mapping[str, PlanningTask], states: StateChanges | None, **sampling: Any
) -> dict[str, Written]:
    """A domain and a problem for each task.

    Args:
        states: what each step changes, to be told in the prompt; None tells nothing.
    """
    asked = [
        Conversation(
            DATASET, key, pddl_prompt(task, states[key] if states else None), pddl_prompt(task, None, hidden=True)
        )
        for key, task in tasks.items()
    ]
    outputs = asker.ask("pddl", asked, max_new_tokens=_TOKENS, **sampling)
    return {key: parse_pddl(output) for key, output in zip(tasks, outputs, strict=True)}


def parse_pddl(reply: str) -> Written:
    """The first domain and the first problem in a reply, each up to where its brackets close."""
    return Written(*(_defined(reply, kind) for kind in _FIELDS))


def _defined(reply: str, kind: str) -> str:
    start = re.search(rf"\(\s*define\s*\(\s*{kind}\b", reply, re.IGNORECASE)
    if start is None:
        return ""
    text, depth, comment = reply[start.start() :], 0, False
    for place, letter in enumerate(text):
        comment = letter == ";" or (comment and letter != "\n")
        if not comment:
            depth += (letter == "(") - (letter == ")")
            if depth == 0:
                return text[: place + 1]
    return text


def pddl_file(written: Mapping[str, Written]) -> str:
    """Predictions: by id the texts of domain and problem."""
    return json.dumps({key: vars(item) for key, item in written.items()}, indent=2, ensure_ascii=False) + "\n"


def read_pddl(node: Node, tasks: Mapping[str, PlanningTask]) -> dict[str, Written]:
    """Predictions of such a file.

    Raises:
        UserError: it is damaged, or has a task that the gold file lacks.
    """
    found = {}
    for key, item in node.members():
        if key not in tasks:
            raise item.wrong(f"a task of the gold file, which has {', '.join(tasks)}")
        found[key] = Written(*(item[name].text() for name in _FIELDS))
    return found


def pddl_result(written: Mapping[str, Written], planner: Planner) -> SystemResult:
    """Verdicts, and the share of tasks that a plan solves."""
    verdicts = {key: planner(item.domain, item.problem) for key, item in written.items()}
    counts: dict[str, int] = {name: sum(v.outcome == name for v in verdicts.values()) for name in OUTCOMES}
    share = counts["solvable"] / len(verdicts) if verdicts else 0.0
    detail: dict[str, Any] = {
        "tasks": len(verdicts),
        **counts,
        "plans_without_an_action": sum(verdict.actions == 0 for verdict in verdicts.values()),
        "verdicts": {key: vars(verdict) for key, verdict in verdicts.items()},
    }
    title = f"Planning from text ({len(verdicts)} tasks, {cell(share)} solvable)"
    tables = [
        ScoreTable(title, ("verdict", "tasks"), [(name, str(count)) for name, count in counts.items()]),
        ScoreTable(
            "By task", ("task", "verdict", "plan or reason"), _rows(verdicts), ("task", "verdict", "plan or reason")
        ),
    ]
    return SystemResult({"pddl_solvable": share, "pddl": detail}, tables)


def _rows(verdicts: Mapping[str, Verdict]) -> list[tuple[str, str, str]]:
    return [(key, verdict.outcome, verdict.why.replace("|", "/")[:80]) for key, verdict in verdicts.items()]
