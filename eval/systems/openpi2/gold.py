"""The official files of v2.0: procedures with state changes by entity and step, and clusters of names.

Three forms have one shape: `dev-ranked.json` (mentions as people wrote them, joined with ` | ` if they are of one
entity), `dev-data-reformatted-v4.json` (canonical names, clusters of mentions), and the same
`-overgenerated-unique` (clusters with paraphrases as well). The files with votes and salience wrap the changes once
more. Each task reads the files that only it needs.

A flat file of predictions has one on each line, an empty one for a step without a change; its columns say which task
they are for.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AliasChoices, BeforeValidator, Field, create_model, model_validator

from d2e_sft.util.errors import UserError
from d2e_sft.util.table import Table
from eval.score.measures import digest
from eval.systems.reading import (
    FlatRow,
    GoldRow,
    OptionalStep,
    StepNumber,
    check_ids,
    checked,
    is_flat,
    read_json,
    read_lines,
    refuse_unfilled,
)

HOMEPAGE = "https://github.com/allenai/openpi-dataset/tree/90acda8957e232decad40c41d86af79800bdd68e/v2.0"
EXPANDED = "dev-data-reformatted-v4-overgenerated-unique.json"
CLUSTERED, RANKED = "dev-data-reformatted-v4.json", "dev-ranked.json"
_BETWEEN = " | "


def alternatives(text: str) -> tuple[str, ...]:
    """Split a raw field at its bars; it may hold a single alternative."""
    return tuple(text.split(_BETWEEN))


def _unwrapped(value: Any, *keys: str) -> Any:
    """Unwrap {"votes": 13, "states": [{"votes": 7, "states": {…}}]} and predictions, {"attributes": […]}."""
    for key in keys:
        value = value[key] if isinstance(value, dict) and key in value else value
    return value


Alternatives = Annotated[tuple[str, ...], BeforeValidator(lambda v: alternatives(v) if isinstance(v, str) else v)]


class Change(GoldRow):
    """One attribute that a step changes; the official scorer compares with the first accepted states."""

    attribute: str
    before: Alternatives
    after: Alternatives


_Change = Annotated[Change, BeforeValidator(lambda value: _unwrapped(value, "states"))]
_Changes = Annotated[tuple[_Change, ...], BeforeValidator(lambda value: _unwrapped(value, "states", "attributes"))]


class EntityStates(GoldRow):
    """What happens to one entity: the changes of every step of the procedure, often none."""

    entity: str
    steps: tuple[_Changes, ...] = Field(validation_alias="answers")

    @model_validator(mode="before")
    @classmethod
    def _by_step(cls, row: Any) -> Any:
        answers = row.get("answers") if isinstance(row, dict) else None
        if not isinstance(answers, dict):
            return row
        expected = [f"step{number}" for number in range(1, len(answers) + 1)]
        if list(answers) != expected:
            raise ValueError(f"answers are of {', '.join(answers)}; expected {', '.join(expected)}")
        return {**row, "answers": list(answers.values())}


class Names(GoldRow):
    """Names of one thing: mentions, and mentions with paraphrases if the file has them."""

    mentions: tuple[str, ...] = Field(validation_alias=AliasChoices("entity_cluster", "attribute_cluster"))
    expanded: tuple[str, ...] | None = Field(
        None, validation_alias=AliasChoices("entity_cluster_combined", "attribute_cluster_combined")
    )

    @model_validator(mode="before")
    @classmethod
    def _may_be_listed(cls, value: Any) -> Any:
        return {"attribute_cluster": value} if isinstance(value, list) else value

    def of(self, expanded: bool) -> tuple[str, ...]:
        return self.mentions if not expanded or self.expanded is None else self.expanded


class Cluster(GoldRow):
    """Names of an entity and, by canonical attribute, of its attributes."""

    names: Names
    attributes: dict[str, Names] = Field(validation_alias="attribute_cluster")

    @model_validator(mode="before")
    @classmethod
    def _has_its_own_names(cls, row: Any) -> Any:
        return {**row, "names": row} if isinstance(row, dict) else row


@dataclass(frozen=True)
class GoldState:
    """One gold change: mentions of entity and attribute, and the accepted states."""

    entity: tuple[str, ...]
    attribute: tuple[str, ...]
    before: tuple[str, ...]
    after: tuple[str, ...]

    @property
    def names(self) -> tuple[str, str]:
        return _BETWEEN.join(self.entity), _BETWEEN.join(self.attribute)


class Procedure(GoldRow):
    """A wikiHow procedure; `clusters` by canonical entity, empty in the ranked form."""

    id: str
    goal: str
    steps: tuple[str, ...] = Field(min_length=1)
    states: tuple[EntityStates, ...] = ()
    clusters: dict[str, Cluster] = {}  # noqa: RUF012  pydantic copies it

    @model_validator(mode="after")
    def _has_answers_for_each_step(self) -> Self:
        for states in self.states:
            if len(states.steps) != len(self.steps):
                raise ValueError(f"{states.entity!r} has answers for {len(states.steps)} steps, not {len(self.steps)}")
        return self

    def texts_by_step(
        self, texts: Callable[[Sequence[str], Sequence[str], Change], list[str]], *, expanded: bool
    ) -> list[list[list[str]]]:
        """Return the texts about the changes of each step, by entity that changes there.

        `texts` makes those of a change, from the names of its entity and attribute; paraphrases are names if
        `expanded`.
        """
        by_step: list[list[list[str]]] = [[] for _ in self.steps]
        for states in self.states:
            cluster = self.clusters[states.entity]
            names = cluster.names.of(expanded)
            for step, changes in zip(by_step, states.steps, strict=True):
                changing = [(cluster.attributes[change.attribute].of(expanded), change) for change in changes]
                if changing:
                    step.append([text for attributes, change in changing for text in texts(names, attributes, change)])
        return by_step

    @property
    def changes_by_step(self) -> list[list[GoldState]]:
        """The changes of each step, in the order of the official states files: by entity, then as annotated."""
        return [
            [
                GoldState(alternatives(states.entity), alternatives(change.attribute), change.before, change.after)
                for states in self.states
                for change in states.steps[place]
            ]
            for place in range(len(self.steps))
        ]


Procedures = Mapping[str, Procedure]  # by id


def normalise(name: str) -> str:
    """Return the name in lower case, without one leading article."""
    name = name.lower()
    return next((name.removeprefix(article) for article in ("the ", "a ", "an ") if name.startswith(article)), name)


def sentence(attribute: str, entity: str, before: str, after: str) -> str:
    """Return a state change in the words of the official files."""
    return f"{attribute} of {entity} was {before} before and {after} after"


def read_official(path: Path, schema: Any = Any) -> dict[str, Any]:
    """Return a JSON file or flat predictions as objects by procedure id; UserError if it is damaged or empty."""
    value = read_flat(path) if is_flat(path) else read_json(path, dict[str, Any])
    if not value:
        raise UserError(f"{path}: holds no procedure; expected an object by procedure id that is not empty")
    content: dict[str, Any] = checked(dict[str, schema], value, str(path))
    return content


def official_text(content: Any, indent: int = 4) -> str:
    return json.dumps(content, indent=indent, ensure_ascii=False) + "\n"


def read_procedures(path: Path) -> dict[str, Procedure]:
    """Read the procedures of an official file by id; UserError if it is missing or damaged."""
    rows = {key: {**row, "id": key} for key, row in read_official(path, dict[str, Any]).items()}
    procedures: dict[str, Procedure] = checked(dict[str, Procedure], rows, str(path))
    return procedures


def read_clustered(path: Path) -> dict[str, Procedure]:
    """Read procedures of a file that has clusters; errors as in `read_procedures`."""
    procedures = read_procedures(path)
    for procedure, states in ((p, states) for p in procedures.values() for states in p.states):
        cluster = procedure.clusters.get(states.entity)
        known = {normalise(name) for name in cluster.attributes} if cluster else set()
        changing = [change.attribute for step in states.steps for change in step]
        missing = [f"{name} of {states.entity}" for name in changing if normalise(name) not in known]
        if cluster is None or missing:
            raise UserError(
                f"{path}: {procedure.id}.clusters: {missing[0] if cluster else states.entity!r} has states and no "
                f"cluster; expected the clusters of {CLUSTERED} or {EXPANDED}",
                remedy="score schemata and sentences against one of these; only states need no clusters",
            )
    return procedures


def digest_of(procedures: Procedures, keys: Iterable[str]) -> str:
    return digest([procedures[key].model_dump() for key in sorted(keys)])


def expansions(procedures: Procedures) -> dict[str, bool]:
    """Return the ways to score: plain, and expanded if the file gives paraphrases as well as mentions."""
    clusters = [cluster for procedure in procedures.values() for cluster in procedure.clusters.values()]
    expanded = bool(clusters) and all(cluster.names.expanded is not None for cluster in clusters)
    return {"plain": False, "expanded": True} if expanded else {"plain": False}


def mean(scores: Iterable[float]) -> float:
    """Return the mean, 0 without values."""
    values = list(scores)
    return sum(values) / len(values) if values else 0.0


def gold_statistics(gold: Procedures) -> tuple[dict[str, Any], Table]:
    """Return the counts of a gold file as in section 5 of the paper, and a table of them."""

    def counts(clusters: Sequence[Names]) -> dict[str, Any]:
        """Return the number of clusters and their mean numbers of names; paraphrases only of an expanded file."""
        expanded = any(names.expanded is not None for names in clusters)
        more = [set(names.of(True)) - set(names.mentions) for names in clusters]
        return {
            "count": len(clusters),
            "mentions": mean(len(names.mentions) for names in clusters),
            "paraphrases": mean(map(len, more)) if expanded else None,
            "names": mean(len(names.of(True)) for names in clusters) if expanded else None,
        }

    clusters = [cluster for procedure in gold.values() for cluster in procedure.clusters.values()]
    changed = [step for procedure in gold.values() for states in procedure.states for step in states.steps if step]
    statistics = {
        "procedures": len(gold),
        "steps": sum(len(procedure.steps) for procedure in gold.values()),
        "entity_clusters": counts([cluster.names for cluster in clusters]),
        "attribute_clusters": counts([names for cluster in clusters for names in cluster.attributes.values()]),
        "entity_step_pairs": len(changed),
        "changes": sum(map(len, changed)),
    }
    rows = []
    for name, value in statistics.items():
        count, *means = value.values() if isinstance(value, dict) else (value, None, None, None)
        rows.append(
            (name.replace("_", " "), count, *(None if number is None else f"{number:.1f}" for number in means))
        )
    columns = ("of the gold file", "n", "mentions", "paraphrases", "names, both")
    return statistics, Table.of(columns, rows, "The gold file; mean numbers of names of a cluster")


def empty_lines(task: str, procedures: Procedures) -> Iterator[dict[str, Any]]:
    """Yield a line to fill in for each step; a step with more predictions gets more lines."""
    empty = dict.fromkeys(FORMS[task][1], "")
    for key, procedure in procedures.items():
        yield from ({"procedure": key, "step": step, **empty} for step in range(1, len(procedure.steps) + 1))


def read_by_step(path: Path, gold: Mapping[str, Sequence[Any]], schema: Any) -> dict[str, list[Any]]:
    """Read {procedure: [one item for each step]}; UserError if the file is damaged, or gold has other steps."""
    by_step: dict[str, list[Any]] = read_official(path, list[schema])
    return check_steps(path, by_step, gold)


def check_steps(path: Path, content: dict[str, list[Any]], gold: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """Return items by step of a file; UserError if procedures or numbers of steps are not those of the gold file."""
    check_ids(path, "procedure", content, gold)
    for key, steps in content.items():
        if len(steps) != len(gold[key]):
            raise UserError(
                f"{path}: {key}: got {len(steps)} items; expected one item for each of the {len(gold[key])} steps of "
                "the procedure"
            )
    return content


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
            (_add_to_step if task in _OF_STEPS else _add)(task, content, *row.values())
        except ValueError as error:
            raise UserError(f"{place}: {error}") from None
    if task == "attribute_clusters":  # officially under their first names; the file may call them anything
        return {
            name: {
                entity: {group[0]: group[1:] or group for group in clusters.values()}
                for entity, clusters in entities.items()
            }
            for name, entities in content.items()
        }
    return content


_OF_STEPS = ("states", "complete", "errors", "schemata")


def _add_to_step(task: str, content: Content, name: str, step: int, *cells: str) -> None:
    """Add an item to a step of a procedure; empty cells add nothing, and steps that were passed over have nothing."""
    steps: list[Any] = content.setdefault(name, [])
    steps += [[] if task in ("states", "complete") else {} for _ in range(step - len(steps))]
    items = steps[step - 1]
    if not any(cells):
        return
    if task in ("states", "complete"):
        items.append(list(cells) if len(cells) > 1 else cells[0])
        return
    entity, *attribute = cells
    if task == "schemata" and not entity:
        raise ValueError(f"entity: got '' for attribute {attribute[0]!r}; expected the entity that has it")
    items.setdefault(entity, []).extend([attribute] if task == "errors" else filter(None, attribute))


def _add(task: str, content: Content, name: str, *cells: Any) -> None:
    """Add a cluster's name, or the salience of an entity in a procedure or at a step."""
    if task == "salience":
        entity, step, value = cells
        states: list[Any] = content.setdefault(name, {"states": []})["states"]
        if all(state["entity"] != entity for state in states):
            states.append({"entity": entity, "answers": {}})
        state = next(state for state in states if state["entity"] == entity)
        if step is None:
            state["global_salience_pred"] = value
        else:
            state["answers"][f"step{step}"] = {"local_salience_pred": value}
    else:
        *path, mention, cluster = (name, *cells)
        if not cluster:
            raise ValueError(f"cluster: got '' for {mention!r}; expected any name or number, the same in its cluster")
        for key in path:
            content = content.setdefault(key, {})
        content.setdefault(cluster, []).append(mention)
