"""OpenPI2.0's predictions as lines, empty ones for steps without a change; the columns say which task they are for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import create_model

from d2e_sft.util.errors import UserError
from eval.systems.flat.lines import FlatRow, OptionalStep, StepNumber, read_lines, refuse_unfilled

Content = dict[str, Any]
# Task → the columns that say what is asked and those that are filled in; the most telling sets first.
FORMS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "states": (("procedure", "step", "entity", "attribute"), ("before", "after")),
    "salience": (("procedure", "entity", "step"), ("salience",)),
    "attribute_clusters": (("procedure", "entity", "attribute"), ("cluster",)),
    "entity_clusters": (("procedure", "name"), ("cluster",)),
    "complete": (("procedure", "step"), ("sentence",)),
    "errors": (("procedure", "step"), ("entity", "attribute", "label")),
    "schemata": (("procedure", "step"), ("entity", "attribute")),
    "pddl": (("task",), ("domain", "problem")),
}
COLUMNS = {task: (*asked, *answers) for task, (asked, answers) in FORMS.items()}


def task_of(path: Path) -> str:
    """Return the task that a flat file's columns are for; UserError if no task has them, or the file is empty."""
    place, row = next(iter(read_lines(path)), (str(path), None))
    if row is None:
        raise UserError(f"{path}: holds no prediction; expected one per line")
    for task, columns in COLUMNS.items():
        if row.keys() >= set(columns):
            return task
    forms = "; ".join(f"task={task}: {', '.join(columns)}" for task, columns in COLUMNS.items())
    raise UserError(f"{place}: got the columns {', '.join(row)}; expected those of a task", remedy=forms)


def read_flat(path: Path) -> Content:
    """Read a flat file into the official form of its task; UserError if a line is damaged, or nothing is filled in."""
    task = task_of(path)
    step: Any = OptionalStep if task == "salience" else StepNumber
    fields: Any = {name: (step if name == "step" else str, ...) for name in COLUMNS[task]}
    schema = create_model("Line", __base__=FlatRow, **fields)
    rows = [(place, vars(line)) for place, line in read_lines(path, schema)]
    _, answers = FORMS[task]
    refuse_unfilled(path, (row[name] for _, row in rows for name in answers), " or ".join(answers))
    content: Content = {}
    for place, row in rows:
        try:
            _ADD[task](content, *row.values())
        except ValueError as error:
            raise UserError(f"{place}: {error}") from None
    if task == "attribute_clusters":  # officially under their first names; the file may call them anything
        return {
            name: {entity: {own[0]: own[1:] or own for own in groups.values()} for entity, groups in entities.items()}
            for name, entities in content.items()
        }
    return content


def _step(content: Content, name: str, step: int, empty: Callable[[], Any]) -> Any:
    """Return what a step has so far; steps that were passed over have nothing."""
    steps: list[Any] = content.setdefault(name, [])
    steps += [empty() for _ in range(step - len(steps))]
    return steps[step - 1]


def _add_schemata(content: Content, name: str, step: int, entity: str, attribute: str) -> None:
    schema = _step(content, name, step, dict)
    if attribute and not entity:
        raise ValueError(f"entity: got '' for attribute {attribute!r}; expected the entity that has it")
    if entity:
        schema.setdefault(entity, []).extend([attribute] if attribute else [])


def _add_label(content: Content, name: str, step: int, entity: str, attribute: str, label: str) -> None:
    labelled = _step(content, name, step, dict)
    if entity or attribute or label:
        labelled.setdefault(entity, []).append([attribute, label])


def _add_item(content: Content, name: str, step: int, *cells: str) -> None:
    item = list(cells) if len(cells) > 1 else cells[0]
    _step(content, name, step, list).extend([item] if any(cells) else [])


def _add_salience(content: Content, name: str, entity: str, step: int | None, salience: str) -> None:
    states: list[Any] = content.setdefault(name, {"states": []})["states"]
    state = next((own for own in states if own["entity"] == entity), None)
    if state is None:
        state = {"entity": entity, "answers": {}}
        states.append(state)
    if step is None:
        state["global_salience_pred"] = salience
    else:
        state["answers"][f"step{step}"] = {"local_salience_pred": salience}


def _add_cluster(content: Content, *names: str) -> None:
    *path, mention, cluster = names
    if not cluster:
        raise ValueError(f"cluster: got '' for {mention!r}; expected any name or number, the same in its cluster")
    for name in path:
        content = content.setdefault(name, {})
    content.setdefault(cluster, []).append(mention)


def _add_pddl(content: Content, name: str, domain: str, problem: str) -> None:
    if name in content:
        raise ValueError(f"task {name!r} is given twice; expected one line each")
    content[name] = {"domain": domain, "problem": problem}


_ADD: Mapping[str, Callable[..., None]] = {
    "states": _add_item,
    "salience": _add_salience,
    "attribute_clusters": _add_cluster,
    "entity_clusters": _add_cluster,
    "complete": _add_item,
    "errors": _add_label,
    "schemata": _add_schemata,
    "pddl": _add_pddl,
}
