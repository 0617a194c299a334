"""OpenPI2.0's predictions as lines; the columns say which task they are of.

A step without a predicted change has one line with empty cells, since each step must be answered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from d2e_sft.util.errors import UserError
from eval.systems.flat.lines import fields, read_lines, refuse_unfilled, whole

Content = dict[str, Any]
# Task → columns, the most telling sets first.
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "states": ("procedure", "step", "entity", "attribute", "before", "after"),
    "salience": ("procedure", "entity", "step", "salience"),
    "attribute_clusters": ("procedure", "entity", "attribute", "cluster"),
    "entity_clusters": ("procedure", "name", "cluster"),
    "complete": ("procedure", "step", "sentence"),
    "schemata": ("procedure", "step", "entity", "attribute"),
    "pddl": ("task", "domain", "problem"),
}
# Task → the columns that are filled in.
ANSWERS: Mapping[str, tuple[str, ...]] = {
    "states": ("before", "after"),
    "salience": ("salience",),
    "attribute_clusters": ("cluster",),
    "entity_clusters": ("cluster",),
    "complete": ("sentence",),
    "schemata": ("entity", "attribute"),
    "pddl": ("domain", "problem"),
}


def task_of(path: Path) -> str:
    """The task that a flat file's columns are of.

    Raises:
        UserError: they are of none, or the file holds no line.
    """
    place, row = next(iter(read_lines(path)), (str(path), None))
    if row is None:
        raise UserError(f"{path}: holds no prediction; expected one a line")
    for task, columns in COLUMNS.items():
        if row.keys() >= set(columns):
            return task
    told = "; ".join(f"task={task}: {', '.join(columns)}" for task, columns in COLUMNS.items())
    raise UserError(f"{place}: got the columns {', '.join(row)}; expected those of a task", remedy=told)


def read_flat(path: Path) -> Content:
    """A flat file in the official form of its task.

    Raises:
        UserError: a line is damaged, or nothing is filled in.
    """
    task = task_of(path)
    rows = [(place, fields(row, COLUMNS[task], place)) for place, row in read_lines(path)]
    answers = [COLUMNS[task].index(name) for name in ANSWERS[task]]
    refuse_unfilled(path, (row[place] for _, row in rows for place in answers), " or ".join(ANSWERS[task]))
    content: Content = {}
    for place, row in rows:
        _ADD[task](content, row, place)
    return _named_by_first(content) if task == "attribute_clusters" else content


def _step(content: Content, name: str, step: str, place: str, empty: Callable[[], Any]) -> Any:
    """What a step has so far; steps that were passed over have nothing."""
    steps: list[Any] = content.setdefault(name, [])
    wanted = whole(step, "step", place)
    if wanted > len(steps) + 1_000:
        raise UserError(f"{place}: step: got {step}; expected a step of the procedure")
    while len(steps) < wanted:
        steps.append(empty())
    return steps[wanted - 1]


def _add_schemata(content: Content, row: Sequence[str], place: str) -> None:
    name, step, entity, attribute = row
    schema = _step(content, name, step, place, dict)
    if attribute and not entity:
        raise UserError(f"{place}: entity: got '' for attribute {attribute!r}; expected the entity that has it")
    if entity:
        schema.setdefault(entity, []).extend([attribute] if attribute else [])


def _add_states(content: Content, row: Sequence[str], place: str) -> None:
    name, step, *state = row
    states = _step(content, name, step, place, list)
    if any(state):  # a step without a change has an empty line
        states.append(state)


def _add_complete(content: Content, row: Sequence[str], place: str) -> None:
    name, step, sentence = row
    sentences = _step(content, name, step, place, list)
    if sentence:
        sentences.append(sentence)


def _add_salience(content: Content, row: Sequence[str], place: str) -> None:
    name, entity, step, salience = row
    states: list[Any] = content.setdefault(name, {"states": []})["states"]
    state = next((own for own in states if own["entity"] == entity), None)
    if state is None:
        state = {"entity": entity, "answers": {}}
        states.append(state)
    if step:
        state["answers"][f"step{whole(step, 'step', place)}"] = {"local_salience_pred": salience}
    else:
        state["global_salience_pred"] = salience


def _add_entity_cluster(content: Content, row: Sequence[str], place: str) -> None:
    name, mention, cluster = row
    _refuse_empty(cluster, mention, place)
    content.setdefault(name, {}).setdefault(cluster, []).append(mention)


def _add_attribute_cluster(content: Content, row: Sequence[str], place: str) -> None:
    name, entity, attribute, cluster = row
    _refuse_empty(cluster, attribute, place)
    content.setdefault(name, {}).setdefault(entity, {}).setdefault(cluster, []).append(attribute)


def _refuse_empty(cluster: str, name: str, place: str) -> None:
    if not cluster:
        raise UserError(f"{place}: cluster: got '' for {name!r}; expected any name or number that its likes have, too")


def _add_pddl(content: Content, row: Sequence[str], place: str) -> None:
    name, domain, problem = row
    if name in content:
        raise UserError(f"{place}: task {name!r} is given twice; expected one line each")
    content[name] = {"domain": domain, "problem": problem}


_ADD: Mapping[str, Callable[[Content, Sequence[str], str], None]] = {
    "states": _add_states,
    "salience": _add_salience,
    "attribute_clusters": _add_attribute_cluster,
    "entity_clusters": _add_entity_cluster,
    "complete": _add_complete,
    "schemata": _add_schemata,
    "pddl": _add_pddl,
}


def _named_by_first(content: Content) -> Content:
    """Clusters of attributes under their first names, as officially; the file calls them as it likes."""
    return {
        name: {
            entity: {group[0]: group[1:] or group for group in groups.values()} for entity, groups in entities.items()
        }
        for name, entities in content.items()
    }
