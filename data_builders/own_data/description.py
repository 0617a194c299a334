"""Read the YAML file that describes own data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from d2e_sft.data.hub_rows import is_hub, is_saved
from d2e_sft.data.sample import Split
from d2e_sft.util.errors import UserError, describe_problem, describe_validation_error, did_you_mean
from d2e_sft.util.files import load_yaml
from data_builders.own_data.spec import ENDINGS, Columns, OwnSpec, ending_of

EXAMPLE = """\
    train: mine.csv
    test: 0.2
    format: qa
    relation: causal
    columns: {context: passage, question: query, answer: label}"""

_SHEETS = (".xlsx", ".xls", ".xlsm", ".ods", ".numbers")


def read_spec(path: Path, *, with_files: bool = True) -> OwnSpec:
    """Read and check a description.

    Args:
        with_files: Check that its files exist; False for a description that is only used for its columns.

    Raises:
        UserError: it is missing, not YAML, or has a wrong value or an unknown key (the nearest one is suggested). Also
            if one of its files does not exist or has an unknown ending.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file; expected the description of own data", f"write one:\n{EXAMPLE}")
    try:
        content = load_yaml(path.read_text(encoding="utf-8"), texts_only=True)
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(f"{path}: not a YAML file ({error})") from None
    if not isinstance(content, dict):
        raise UserError(
            f"{path}: contains {type(content).__name__}; expected keys and values", f"for example:\n{EXAMPLE}"
        )
    try:
        # An empty value (`dev:`) is ignored.
        spec = OwnSpec.model_validate({key: value for key, value in content.items() if value != ""})
    except ValidationError as error:
        raise UserError(f"{path}: {describe_validation_error(error, _describe)}") from None
    if with_files:
        _check_files(path, spec)
    return spec


def check_file(file: Path, key: str = "") -> None:
    """Raise UserError unless the file exists and has a known ending; `key` goes before the messages."""
    if ending_of(file.name) not in ENDINGS or file.name.lower().endswith(".parquet.gz"):
        remedy = "save the sheet as CSV (UTF-8), and name that file" if ending_of(file.name) in _SHEETS else None
        raise UserError(f"{key}got {str(file)!r}; expected a file that ends in {', '.join(ENDINGS)}", remedy)
    if not file.is_file():
        there = [found.name for found in file.parent.iterdir()] if file.parent.is_dir() else []
        remedy = "paths are relative to the folder of the description" if key else None
        raise UserError(f"{key}{file}: no such file.{did_you_mean(file.name, there)}", remedy)


def _check_files(path: Path, spec: OwnSpec) -> None:
    places: dict[Path, Split] = {}
    for split, name in spec.files.items():
        file = path.parent / name
        if is_hub(name) or is_saved(file):
            continue
        check_file(file, f"{path}: {split}: ")
        if other := places.get(file.resolve()):
            raise UserError(
                f"{path}: {split}: {name!r} is also the file of {other}; expected a file for each split",
                remedy=f"write `{split}: 0.1` for a share of train",
            )
        places[file.resolve()] = split


def _describe(problem: Mapping[str, Any]) -> str:
    """Return a problem that pydantic found; unknown keys get the nearest known one."""
    if problem["type"] != "extra_forbidden":
        return describe_problem(problem)
    *above, key = problem["loc"]
    known, value = list((Columns if above else OwnSpec).model_fields), problem["input"]
    hint = did_you_mean(str(key), known)
    if above and value in known:  # `passage: context`
        hint = f" The part of the sample comes first: `{value}: {key}`."
    name = ".".join(map(str, problem["loc"]))
    return f"unknown key {name!r} (value {value!r}); expected some of {', '.join(known)}.{hint}"
