"""Planning from text: a model writes a PDDL domain and problem, a planner judges them (paper section 4.3.2).

The planner is Fast Downward, by unified-planning; `pyperplan` has no negative preconditions, but models do.
"""

import contextlib
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from d2e_sft.data.chat_template import Continuation
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import load_yaml
from d2e_sft.util.table import Table
from eval.score.measures import digest, shares
from eval.systems.asking import Asker, conversation
from eval.systems.benchmark import BenchmarkCall, BenchmarkResult
from eval.systems.openpi2.downstream import (
    StateChanges,
    ask_entity_states,
    salient,
    with_other_lines,
)
from eval.systems.openpi2.gold import Procedure, official_text, read_official
from eval.systems.openpi2.task import OpenPIOptions, OpenPITask, cell, mean
from eval.systems.reading import GoldRow, check_ids, checked

OWN_PROCEDURES = Path(__file__).parent / "prompts" / "pddl_procedures.yaml"
_TOKENS = 1024
Outcome = Literal["solvable", "unsolvable", "parse error", "undecided"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
_LONGEST = 300  # characters of a reason


class PlanningTask(GoldRow):
    """A procedure and what is to be planned with its steps."""

    id: str
    goal: str
    steps: tuple[str, ...]
    task: str

    @property
    def procedure(self) -> Procedure:
        return Procedure(id=self.id, goal=self.goal, steps=self.steps)


class Written(GoldRow):
    """The two files of a reply; empty if it has none."""

    domain: str
    problem: str


def read_tasks(path: Path) -> dict[str, PlanningTask]:
    """Read planning tasks by id, a YAML or JSON list of `{id, goal, steps, task}`; UserError if it is damaged."""
    try:
        root = load_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path}: is not readable as YAML or JSON ({error})") from None
    entries: list[PlanningTask] = checked(list[PlanningTask], root, str(path))
    tasks = {task.id: task for task in entries}
    if len(tasks) < len(entries):
        raise UserError(f"{path}: an id is given twice; expected each once")
    return tasks


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


@dataclass(frozen=True)
class PlanVerdict:
    """What the planner says, and `why`: the plan, or what went wrong.

    `actions` is 0 where the goal holds from the start, None without a plan.
    """

    outcome: Outcome
    why: str = ""
    actions: int | None = None


Planner = Callable[[str, str], PlanVerdict]  # texts of domain and problem → verdict


def make_planner(seconds: float) -> Planner:
    """Return a planner with a time limit for one problem; UserError if the library or its engine is not installed."""
    try:
        import up_fast_downward  # noqa: F401  registers the engine
        from unified_planning.shortcuts import get_environment
    except ImportError as error:
        remedy = "pip install 'd2e-sft[planning]'"
        raise UserError(f"task=pddl: needs a planner, which is not installed ({error})", remedy) from None
    get_environment().credits_stream = None
    return lambda domain, problem: _judge(domain, problem, seconds)


def _judge(domain: str, problem: str, seconds: float) -> PlanVerdict:
    from unified_planning.engines import PlanGenerationResultStatus as Status
    from unified_planning.io import PDDLReader
    from unified_planning.shortcuts import OneshotPlanner

    if not domain or not problem:
        return PlanVerdict("parse error", f"the reply has no {'problem' if domain else 'domain'} file")
    outcome: Outcome = "parse error"
    # The engine writes its translation into the working directory, and leaves it there when it runs out of time.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, contextlib.chdir(folder):
        # Reader and engine raise of their own, of pyparsing's and of Python's kinds, and by assertions. Of the reader
        # all mean a parse error; of the engine all mean that it does not support something (numbers, time).
        try:
            for name, text in (("domain.pddl", domain), ("problem.pddl", problem)):
                Path(name).write_text(text, encoding="utf-8")
            task = PDDLReader().parse_problem("domain.pddl", "problem.pddl")
            outcome = "undecided"
            with OneshotPlanner(name="fast-downward") as engine:
                result = engine.solve(task, timeout=seconds)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".replace("\n", " ")
            return PlanVerdict(outcome, reason if len(reason) <= _LONGEST else f"{reason[:_LONGEST]}…")
    if result.plan is not None:
        steps = list(result.plan.actions)
        return PlanVerdict("solvable", "; ".join(map(str, steps)), len(steps))
    if result.status in (Status.UNSOLVABLE_PROVEN, Status.UNSOLVABLE_INCOMPLETELY):
        return PlanVerdict("unsolvable")
    return PlanVerdict("undecided", result.status.name)


def pddl_result(written: Mapping[str, Written], planner: Planner) -> BenchmarkResult:
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
    return BenchmarkResult({"pddl_solvable": share, "pddl": detail}, tables, measures=measures)


class Pddl(OpenPITask[Mapping[str, PlanningTask], Mapping[str, Written]]):
    """Planning domains and problems, judged by a planner."""

    kind = "pddl"
    official = ("pddl_tasks.json",)

    def read_gold(self, path: Path, options: Any) -> Mapping[str, PlanningTask]:
        return read_tasks(path)

    def read_predictions(self, path: Path, gold: Mapping[str, PlanningTask], options: Any) -> Mapping[str, Written]:
        written = read_official(path, Written)
        check_ids(path, "task", written, gold)
        return written

    def evaluate(
        self, gold: Mapping[str, PlanningTask], answers: Mapping[str, Written], options: Any, seed: int
    ) -> BenchmarkResult:
        return pddl_result(answers, make_planner(options.planner_seconds))

    def run(self, call: BenchmarkCall, asker: Asker) -> BenchmarkResult:
        """Ask for a domain and a problem per task, with entity states in the prompt if the options say so."""
        options: OpenPIOptions = call.options
        planner = make_planner(options.planner_seconds)
        tasks = call.drawn_from(read_tasks(options.pddl_file or OWN_PROCEDURES))
        states: StateChanges | None = None
        other_lines = 0
        if options.entities != "none":
            procedures = {key: task.procedure for key, task in tasks.items()}
            only = options.entities == "salient"
            states, other_lines = ask_entity_states(asker, call.form, procedures, with_salience=only, **call.sampling)
            states = salient(states, options.salient) if only else states
        chats = [
            conversation("openpi2", key, "openpi2/prompts/pddl", **vars(task), states=states[key] if states else None)
            for key, task in tasks.items()
        ]
        style = Continuation(cue="", stops=())  # the files have empty lines
        outputs = asker.ask("pddl", chats, max_new_tokens=_TOKENS, style=style, **call.sampling)
        written = {key: parse_pddl(output) for key, output in zip(tasks, outputs, strict=True)}
        files = {
            "pddl.json": official_text({key: vars(item) for key, item in written.items()}, indent=2),
            "pddl_tasks.json": official_text([vars(task) for task in tasks.values()], indent=2),
        }
        return replace(with_other_lines(pddl_result(written, planner), other_lines), files=files)

    def template(self, gold: Mapping[str, PlanningTask], options: Any) -> Iterator[dict[str, Any]]:
        return ({"task": name, "domain": "", "problem": ""} for name in gold)
