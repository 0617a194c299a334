"""Every key of a recipe with type, default and meaning, from the pydantic models, for terminal, docs and editors."""

import inspect
import textwrap
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from d2e_sft.config.lookup import EXTENDS
from d2e_sft.config.recipe import Recipe, section_in
from d2e_sft.util.errors import UserError, did_you_mean

_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
_WORDS = {"int": "whole number", "float": "number", "str": "text", "bool": "true or false", "NoneType": "null"}
_YAML = {"None": "null", "True": "true", "False": "false"}
_WIDTH = 100  # of a terminal


@dataclass(frozen=True)
class RecipeKey:
    """One key of a recipe; its `default` is in YAML, None if a value is required."""

    name: str
    kind: str
    default: str | None
    meaning: str
    is_section: bool = False

    def describe(self) -> str:
        default = "required" if self.default is None else f"default: {self.default}"
        head = f"{self.name}  (section)" if self.is_section else f"{self.name}  ({self.kind}; {default})"
        lines = textwrap.wrap(head, _WIDTH, subsequent_indent="    ")
        return "\n".join([*lines, *textwrap.wrap(self.meaning, _WIDTH, initial_indent="  ", subsequent_indent="  ")])


def recipe_keys() -> list[RecipeKey]:
    """All keys in the order of the schema; a section comes before its keys."""
    return list(_keys_of(Recipe, ""))


def explain(name: str) -> list[RecipeKey]:
    """Return the keys that match a key (`train.optim`), a section (`train`), or the last part of keys (`alpha`)."""
    keys = recipe_keys()
    matching = [key for key in keys if key.name == name or key.name.startswith(f"{name}.")]
    matching = matching or [key for key in keys if key.name.endswith(f".{name}")]
    if matching:
        return matching
    known = [key.name if "." in name else key.name.rpartition(".")[2] for key in keys]
    raise UserError(f"{name}: no such recipe key.{did_you_mean(name, known)}", "`d2e recipes explain` lists all keys")


def json_schema() -> dict[str, Any]:
    """Return the JSON schema (2020-12) of a recipe file for editors; no key is required, as it may extend others."""
    schema = Recipe.model_json_schema()
    for part in (schema, *schema["$defs"].values()):
        part.pop("required", None)
    file = {"type": "string"}
    schema["properties"][EXTENDS] = {
        "anyOf": [file, {"type": "array", "items": file}],
        "description": "Recipes or files that this one overrides; later ones override earlier ones.",
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "d2e-sft recipe"}


def _keys_of(section: type[BaseModel], prefix: str) -> Iterator[RecipeKey]:
    nested = []
    for name, field in section.model_fields.items():
        inner = section_in(field.annotation)
        if inner is None:
            yield _key(prefix + name, field)
            continue
        if type(None) in get_args(field.annotation):  # may be absent: a value of its own
            yield RecipeKey(prefix + name, "a section, or null", "null", field.description or "")
        nested.append((prefix + name, inner))
    for name, inner in nested:
        yield RecipeKey(name, "section", None, inspect.cleandoc(inner.__doc__ or "").split("\n\n")[0], is_section=True)
        yield from _keys_of(inner, f"{name}.")


def _key(name: str, field: FieldInfo) -> RecipeKey:
    bounds = [
        f"{word} {getattr(mark, sign):,.12g}"
        for mark in field.metadata
        for sign, word in _BOUNDS.items()
        if hasattr(mark, sign)
    ]
    value = None if field.is_required() else field.get_default(call_default_factory=True)
    text = f"[{', '.join(map(str, value))}]" if isinstance(value, list) else _YAML.get(str(value), str(value))
    meaning = " ".join((field.description or "").split())
    return RecipeKey(
        name, ", ".join([_kind(field.annotation), *bounds]), None if field.is_required() else text, meaning
    )


def _kind(annotation: Any) -> str:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(parts[0])
    if origin is Literal:
        return " | ".join(map(str, parts))
    if origin in (Union, types.UnionType):
        return " or ".join(_kind(part) for part in parts)
    if origin is list:
        return f"list of {_kind(parts[0])}"
    return _WORDS.get(annotation.__name__, annotation.__name__)
