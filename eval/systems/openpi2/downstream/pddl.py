"""Planning from text: a model writes a PDDL domain and problem, a planner judges them (paper section 4.3.2)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from d2e_sft.data.chat_template import Continuation, Messages
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import load_yaml
from d2e_sft.util.table import Table
from eval.compare.measures.measure import digest, shares
from eval.systems.asker import Asker
from eval.systems.conversations import turns, wording
from eval.systems.files import Row, check_ids, checked
from eval.systems.openpi2.downstream import entity_states
from eval.systems.openpi2.downstream.entity_states import StateChange, StateChanges
from eval.systems.openpi2.downstream.planner import OUTCOMES, Planner, make_planner
from eval.systems.openpi2.gold import Procedure, official_text, read_official
from eval.systems.openpi2.metrics import cell, mean
from eval.systems.openpi2.task import OpenPIOptions, Task, conversation, drawn, sampling
from eval.systems.system import SystemCall, SystemResult

OWN_PROCEDURES = Path(__file__).parents[1] / "prompts" / "pddl_procedures.yaml"
_TOKENS = 1024


class PlanningTask(Row):
    """A procedure and what is to be planned with its steps."""

    id: str
    goal: str
    steps: tuple[str, ...]
    task: str

    @property
    def procedure(self) -> Procedure:
        """The procedure without gold."""
        return Procedure(id=self.id, goal=self.goal, steps=self.steps)


class Written(Row):
    """The two files of a reply; empty if it has none."""

    domain: str
    problem: str


def read_tasks(path: Path) -> dict[str, PlanningTask]:
    """Read planning tasks by id, a YAML or JSON list of `{id, goal, steps, task}`; UserError if it is damaged."""
    try:
        root = load_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path}: is not readable as YAML or JSON ({error})") from None
    listed: list[PlanningTask] = checked(list[PlanningTask], root, str(path))
    tasks = {task.id: task for task in listed}
    if len(tasks) < len(listed):
        raise UserError(f"{path}: an id is given twice; expected each once")
    return tasks


def pddl_prompt(
    task: PlanningTask, states: Sequence[Sequence[StateChange]] | None, *, hidden: bool = False
) -> Messages:
    """Ask for both files; the imagined view has no goal, steps and changes."""
    told = wording("openpi2/prompts/pddl")
    if hidden:
        return turns(told["hidden_request"].format(task=task.task))
    lines = []
    for place, step in enumerate(task.steps):
        lines.append(told["step"].format(number=place + 1, step=step))
        if states is not None and states[place]:
            lines.append(told["states"].format(states="; ".join(change.text for change in states[place])))
    return turns(told["request"].format(goal=task.goal, steps="\n".join(lines), task=task.task))


def parse_pddl(reply: str) -> Written:
    """Return the first domain and the first problem in a reply, each up to where its brackets close."""
    return Written(domain=_defined(reply, "domain"), problem=_defined(reply, "problem"))


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


def pddl_result(written: Mapping[str, Written], planner: Planner) -> SystemResult:
    """Return verdicts, and the share of tasks that a plan solves."""
    verdicts = {key: planner(item.domain, item.problem) for key, item in written.items()}
    counts: dict[str, int] = {name: sum(v.outcome == name for v in verdicts.values()) for name in OUTCOMES}
    share = mean(verdict.outcome == "solvable" for verdict in verdicts.values())
    detail: dict[str, Any] = {
        "tasks": len(verdicts),
        **counts,
        "plans_without_an_action": sum(verdict.actions == 0 for verdict in verdicts.values()),
        "verdicts": {key: vars(verdict) for key, verdict in verdicts.items()},
    }
    title = f"Planning from text ({len(verdicts)} tasks, {cell(share)} solvable)"
    columns = ("task", "verdict", "plan or reason")
    rows = [(key, verdict.outcome, verdict.why.replace("|", "/")[:80]) for key, verdict in verdicts.items()]
    tables = [
        Table.of(("verdict", "tasks"), [(name, str(count)) for name, count in counts.items()], title),
        Table.of(columns, rows, "By task"),
    ]
    solvable = {key: float(verdict.outcome == "solvable") for key, verdict in verdicts.items()}
    measures = shares("solvable", "tasks", digest(sorted(solvable)), solvable)
    return SystemResult({"pddl_solvable": share, "pddl": detail}, tables, measures=measures)


class Pddl(Task[Mapping[str, PlanningTask], Mapping[str, Written]]):
    """Planning domains and problems, judged by a planner."""

    kind = "pddl"
    official = ("pddl_tasks.json",)

    def read_gold(self, path: Path, options: Any) -> Mapping[str, PlanningTask]:
        return read_tasks(path)

    def read_predictions(self, path: Path, gold: Mapping[str, PlanningTask], options: Any) -> Mapping[str, Written]:
        found = read_official(path, Written)
        check_ids(path, "task", found, gold)
        return found

    def evaluate(
        self, gold: Mapping[str, PlanningTask], answers: Mapping[str, Written], options: Any, seed: int
    ) -> SystemResult:
        return pddl_result(answers, make_planner(options.planner_seconds))

    def run(self, call: SystemCall, asker: Asker) -> SystemResult:
        """Ask for a domain and a problem per task, with entity states in the prompt if the options say so."""
        own: OpenPIOptions = call.options
        planner = make_planner(own.planner_seconds)
        tasks = drawn(call, read_tasks(own.pddl_file or OWN_PROCEDURES))
        states: StateChanges | None = None
        other = 0
        if own.entities != "none":
            procedures = {key: task.procedure for key, task in tasks.items()}
            only = own.entities == "salient"
            states, other = entity_states.ask_entity_states(
                asker, call.form, procedures, with_salience=only, **sampling(call)
            )
            states = entity_states.salient(states, own.salient) if only else states
        asked = [conversation(key, pddl_prompt, task, states[key] if states else None) for key, task in tasks.items()]
        style = Continuation(cue="", stops=())  # the files have empty lines
        outputs = asker.ask("pddl", asked, max_new_tokens=_TOKENS, style=style, **sampling(call))
        written = {key: parse_pddl(output) for key, output in zip(tasks, outputs, strict=True)}
        files = {
            "pddl.json": official_text({key: vars(item) for key, item in written.items()}, indent=2),
            "pddl_tasks.json": official_text([vars(task) for task in tasks.values()], indent=2),
        }
        return replace(entity_states.with_other_lines(pddl_result(written, planner), other), files=files)

    def template(self, gold: Mapping[str, PlanningTask], options: Any) -> Iterator[dict[str, Any]]:
        return ({"task": name, "domain": "", "problem": ""} for name in gold)
