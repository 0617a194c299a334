"""Files of systems: JSON checked against a schema (a pydantic model or a type of one), and files found in folders."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, StringConstraints, TypeAdapter, ValidationError

from d2e_sft.util.errors import UserError, describe_validation_error, did_you_mean
from d2e_sft.util.files import object_with_unique_keys

_DAMAGED = "the file is damaged or of another kind: download or write it again"
_NO_LINES = "write one JSON object a line (.jsonl), or CSV (.csv)"
Text = Annotated[str, StringConstraints(pattern=r"\S")]  # not empty


class Row(BaseModel):
    """Base of the schemas. Unknown fields are ignored, because official files have more than a scorer reads."""

    model_config = ConfigDict(frozen=True)


def read_json(path: Path, schema: Any = Any) -> Any:
    """Read a JSON file; UserError if it is not UTF-8 or JSON, has a key twice, or does not fit the schema."""
    return checked(schema, _decoded(read_text(path), str(path)), str(path))


def read_json_lines(path: Path, schema: Any = dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield (place, checked object) for each non-blank line of a JSON-lines file; errors as in `read_json`."""
    # Only "\n" ends a line: texts may hold other characters that count as line ends elsewhere.
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        place = f"{path}, line {number}"
        if line.strip():
            value = _decoded(line, place, _NO_LINES)
            yield place, checked(schema, value, place, _DAMAGED if isinstance(value, dict) else _NO_LINES)


def read_unique(lines: Iterable[tuple[str, Any]], key: str) -> dict[str, Any]:
    """Return the objects of (place, object) by the value of a field; UserError if two have the same."""
    found: dict[str, Any] = {}
    for place, item in lines:
        name = getattr(item, key)
        if name in found:
            raise UserError(f"{place}: {key} {name!r} is given twice; expected each once")
        found[name] = item
    return found


def json_lines(rows: Iterable[Any]) -> str:
    """Return the text of a JSON-lines file."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def checked(schema: Any, value: Any, place: str, remedy: str = _DAMAGED) -> Any:
    """Return the value as the schema's type; UserError if it does not fit, with place, field and value."""
    try:
        return _adapter(schema).validate_python(value)
    except ValidationError as error:
        raise NotFittingError(place, error, remedy) from None


class NotFittingError(UserError):
    """A value does not fit its schema: `fields` of the value, `is_choice` if each expects one of some values."""

    def __init__(self, place: str, error: ValidationError, remedy: str) -> None:
        super().__init__(f"{place}: {describe_validation_error(error)}", remedy)
        self.fields = [str(one["loc"][0]) for one in error.errors() if one["loc"]]
        self.is_choice = all(one["type"] == "literal_error" for one in error.errors())


@cache
def _adapter(schema: Any) -> TypeAdapter[Any]:
    return TypeAdapter(schema)


def check_ids(path: Path, what: str, found: Collection[str], known: Collection[str], *, all_of: str = "") -> None:
    """Check that predictions are about known items; UserError if an id is unknown, or missing.

    Args:
        what: Word for an item in messages.
        found: The ids in the file at `path`.
        known: The ids of the gold file.
        all_of: Remedy for known items without predictions; they are allowed if it is empty.
    """
    unknown = [name for name in found if name not in known]
    if unknown:
        raise UserError(
            f"{path}: {what} {unknown[0]!r} is not in the gold file ({len(unknown)} such); expected ids such as "
            f"{', '.join(list(known)[:3])}.{did_you_mean(unknown[0], known)}",
            remedy="name the gold file that these predictions were made for",
        )
    lacking = [name for name in known if name not in found]
    if lacking and all_of:
        raise UserError(f"{path}: {what} {lacking[0]!r} is missing ({len(lacking)} of {len(known)})", remedy=all_of)


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file; UserError if the file cannot be read, or is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text ({error})", remedy=_DAMAGED) from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None


def _decoded(text: str, place: str, remedy: str = _DAMAGED) -> Any:
    try:
        return json.loads(text, object_pairs_hook=object_with_unique_keys)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}: {error.msg}; the text begins with {text[:60]!r}"
        raise UserError(f"{place}: not JSON ({where})", remedy) from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place}: not sound JSON ({error})", remedy) from None


_SHOWN = 8


def file_in(path: Path, names: Sequence[str], option: str, what: str) -> Path:
    """Return a file itself, or the first of the names that is found in a folder or below, the nearest one first.

    So RUN stands for RUN/eval/BENCH/NAME. Messages speak of the option and of `what` is expected there. Raises
    UserError if nothing is there, or the folder has none of the names, or one of them several times.
    """
    if path.is_file():
        return path
    if not path.is_dir():
        raise UserError(f"{option} {path}: no such file or folder", remedy=f"expected {what}: {' or '.join(names)}")
    for name in names:
        found = sorted(path.rglob(name), key=lambda file: (len(file.parts), file))
        nearest = [file for file in found if len(file.parts) == len(found[0].parts)]
        if len(nearest) > 1:
            listed = ", ".join(str(file.relative_to(path)) for file in nearest[:_SHOWN])
            raise UserError(f"{option} {path}: has {len(nearest)} files {name}: {listed}", f"name one: {option} FILE")
        if nearest:
            return nearest[0]
    held = sorted(f"{item.name}/" if item.is_dir() else item.name for item in path.iterdir())
    more = f" and {len(held) - _SHOWN:,} more" if len(held) > _SHOWN else ""
    raise UserError(
        f"{option} {path}: holds no {' or '.join(names)}; there is {', '.join(held[:_SHOWN]) or 'nothing'}{more}",
        remedy=f"expected {what}; name its folder, or the file itself: {option} FILE",
    )
