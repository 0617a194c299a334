"""Counts of the related systems' files beside those that their papers print; `d2e data stats crepe`."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from d2e_sft.util.encrypted_zip import member_names, read_encrypted
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import load_package_yaml
from d2e_sft.util.table import Table

# The papers' values are data of the package that compares with them, which this one may not import.
_PUBLISHED = Path(__file__).parents[2] / "eval/compare/published"
Counts = dict[str, dict[str, float]]  # column of the paper's table → row → number
_TYPES = {"INPARA_EFFECT": "in-para", "EXOGENOUS_EFFECT": "out-of-para", "OUTOFPARA_DISTRACTOR": "no effect"}
_HOPS = {1: "one hop", 2: "two hops", 3: "three hops"}


def system_tables(name: str, folder: Path) -> list[Table]:
    """Return a system's tables with the paper's numbers and ours; UserError if the folder has none of its files."""
    table_name, count = _SYSTEMS[name]
    try:
        ours = count(folder)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{folder}: not the published files of {name} ({error!r})", _obtain(name)) from None
    if not ours:
        raise UserError(f"{folder}: has no file of {name}", _obtain(name))
    paper = load_package_yaml(_PUBLISHED / f"{name}.yaml")
    tables = []
    for table in (table for table in paper["tables"] if table["table"] == table_name):
        columns = list(table["columns"])
        printed = {row["name"]: dict(zip(columns, str(row["values"]).split(), strict=True)) for row in table["rows"]}
        more = [row for names in ours.values() for row in names if row not in printed]
        header = ["", *(f"{column}: {side}" for column in columns for side in ("paper", "ours"))]
        rows = [
            [row, *(cell for column in columns for cell in (_plain(printed, row, column), _said(ours, row, column)))]
            for row in dict.fromkeys([*printed, *more])
        ]
        title = f"Table {table_name}" if isinstance(table_name, int) else table_name
        note = "– not in the paper, or the file is not here."
        tables.append(Table.of(header, rows, f"{paper['paper']}, {title}: {table['title']}", notes=[note]))
    return tables


def _obtain(name: str) -> str:
    return "make them: d2e data boxes DIR/boxes/base.zip" if name == "boxes" else f"get them: d2e data download {name}"


def _plain(printed: Mapping[str, Mapping[str, str]], row: str, column: str) -> str:
    value = printed.get(row, {}).get(column, "–")
    return f"{int(value):,}" if value.isdecimal() else value


def _said(ours: Counts, row: str, column: str) -> str:
    value = ours.get(column, {}).get(row)
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.1f}"


def _crepe(folder: Path) -> Counts:
    """A step is a block after the start; the paper's 295 steps of dev also count ten starts that are typed."""
    by_column: dict[str, list[Any]] = {
        column: list(json.loads(file.read_text(encoding="utf-8")).values())
        for column, split in (("Dev", "dev"), ("Test", "test"))
        if (file := folder / f"data_{split}_v2.json").is_file()
    }
    if len(by_column) == 2:
        by_column["Total"] = [*by_column["Dev"], *by_column["Test"]]
    return {column: _crepe_counts(procedures) for column, procedures in by_column.items()}


def _crepe_counts(procedures: list[Any]) -> dict[str, float]:
    blocks = [block for procedure in procedures for block in procedure["steps"][1:]]
    steps = [item["step"] for block in blocks for item in block if item["type"] == "step"]
    return {
        "procedures": len(procedures),
        "steps": len(steps),
        "event changes": sum(item["type"] == "event" for block in blocks for item in block),
        "steps of a procedure": len(steps) / len(procedures),
        "tokens of a step": fmean(len(step.split()) for step in steps),
    }


def _wiqa(folder: Path) -> Counts:
    by_column = {
        column: [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line.strip()]
        for column, split in (("Train", "train"), ("Dev", "dev"), ("Test", "test"))
        if (file := folder / f"{split}.jsonl").is_file()
    }
    if len(by_column) == 3:
        by_column["Total"] = [row for rows in list(by_column.values()) for row in rows]
    source = folder / "para_id.prompt.topic.partition.tsv"
    lines = [line.split("\t") for line in source.read_text(encoding="utf-8").splitlines()] if source.is_file() else []
    topics = {row["para_id"].removeprefix("propara_"): row["topic"] for row in _rows(lines)}
    return {column: _wiqa_counts(rows, topics) for column, rows in by_column.items()}


def _rows(lines: list[list[str]]) -> Iterator[dict[str, str]]:
    return (dict(zip(lines[0], line, strict=True)) for line in lines[1:])


def _wiqa_counts(rows: list[Any], topics: Mapping[str, str]) -> dict[str, float]:
    questions = [row["metadata"] for row in rows]
    paragraphs = {question["para_id"] for question in questions}
    types = Counter(_TYPES[question["question_type"]] for question in questions)
    hops = Counter(_HOPS[question["path_len"] - 1] for question in questions if question["path_len"] > 1)
    answers = Counter(f"answer {row['question']['answer_label'].replace('_', ' ')}" for row in rows)
    known = {topics[name.removeprefix("propara_")] for name in paragraphs if name.removeprefix("propara_") in topics}
    return {
        **({"topics": len(known)} if known else {}),
        "paragraphs": len(paragraphs),
        "influence graphs": len({(question["para_id"], question["graph_id"]) for question in questions}),
        "questions": len(rows),
        **{name: types[name] for name in _TYPES.values()},
        **{name: hops[name] for name in _HOPS.values()},
        **answers,
    }


def _openpi2(folder: Path) -> Counts:
    file = folder / "v2.0/dev-data-reformatted-v4-overgenerated-unique.json"
    if not file.is_file():
        return {}
    procedures = list(json.loads(file.read_text(encoding="utf-8")).values())
    entities = [entity for procedure in procedures for entity in procedure["clusters"].values()]
    attributes = [attribute for entity in entities for attribute in entity["attribute_cluster"].values()]
    changes = [
        change
        for procedure in procedures
        for state in procedure["states"]
        for step in state["answers"].values()
        for change in step
    ]

    def sizes(clusters: list[Any], key: str) -> float:
        return fmean(len(set(cluster.get(key) or ())) for cluster in clusters)

    return {
        "Dev": {
            "procedures": len(procedures),
            "steps of a procedure": fmean(len(procedure["steps"]) for procedure in procedures),
            "entities": len(entities),
            "mentions of an entity": sizes(entities, "entity_cluster"),
            "expanded mentions of an entity": sizes(entities, "entity_overgenerate"),
            "attributes": len(attributes),
            "mentions of an attribute": sizes(attributes, "attribute_cluster"),
            "expanded mentions of an attribute": sizes(attributes, "attribute_overgenerate"),
            "states": len(changes),
        }
    }


def _boxes(folder: Path) -> Counts:
    """Scenarios and questions of each archive in the folder, a row for each folder of an archive."""
    ours: Counts = {}
    for archive in sorted(folder.glob("*.zip")):
        for member in (name for name in member_names(archive) if name.endswith(".jsonl")):
            inside, _, file = member.rpartition("/")
            split = file.partition("-")[0].removesuffix(".jsonl").capitalize()
            rows = [json.loads(line) for line in read_encrypted(archive, member).splitlines() if line]
            row = inside.rpartition("/")[2] or archive.stem
            ours.setdefault(f"{split} scenarios", {})[row] = len({question["sample_id"] for question in rows})
            ours.setdefault(f"{split} examples", {})[row] = len(rows)
    return ours


_SYSTEMS: dict[str, tuple[int | str, Callable[[Path], Counts]]] = {
    "crepe": (1, _crepe),
    "wiqa": (1, _wiqa),
    "openpi2": ("section 5", _openpi2),
    "boxes": (6, _boxes),
}
SYSTEMS = tuple(_SYSTEMS)
