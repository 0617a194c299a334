"""Reading and writing of files: JSON, JSON lines and CSV against a schema, with file, line and value in errors.

A schema is a pydantic model or a type of one. A *flat* file has one prediction on each line, as JSON lines or CSV,
where `null` is an answer that could not be read.
"""

import csv
import io
import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

from d2e_sft.util.errors import UserError, describe_validation_error, did_you_mean, shortened
from d2e_sft.util.files import load_json

_DAMAGED = "the file is damaged or of another kind: download or write it again"
_NO_LINES = "write one JSON object a line (.jsonl), or CSV (.csv)"
_MOST_STEPS = 1_000
_LISTED = 8  # names of a folder's content in a message
Text = Annotated[str, StringConstraints(pattern=r"\S")]  # not empty
StepNumber = Annotated[int, Field(ge=1, le=_MOST_STEPS)]
OptionalStep = Annotated[StepNumber | None, BeforeValidator(lambda value: None if value == "" else value)]


class GoldRow(BaseModel):
    """Base of the schemas. Unknown fields are ignored, because official files have more than a scorer reads."""

    model_config = ConfigDict(frozen=True)


class FlatRow(GoldRow):
    """Base of the schemas of flat lines; numbers count as texts, as they do in CSV."""

    model_config = ConfigDict(coerce_numbers_to_str=True)


@cache
def _adapter(schema: Any) -> TypeAdapter[Any]:
    return TypeAdapter(schema)


def checked(schema: Any, value: Any, place: str, remedy: str = _DAMAGED) -> Any:
    """Return the value as the schema's type; UserError if it does not fit, with place, field and value."""
    try:
        return _adapter(schema).validate_python(value)
    except ValidationError as error:
        raise UserError(f"{place}: {describe_validation_error(error)}", remedy) from None


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file; UserError if the file cannot be read, or is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text ({error})", remedy=_DAMAGED) from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None


def read_json(path: Path, schema: Any = Any) -> Any:
    """Read a JSON file; UserError if it is not UTF-8 or JSON, has a key twice, or does not fit the schema."""
    return checked(schema, _decoded(read_text(path), str(path)), str(path))


def read_json_lines(path: Path, schema: Any = dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield (place, checked object) for each non-blank line of a JSON-lines file; errors as in `read_json`."""
    return json_lines_of(read_text(path), str(path), schema)


def json_lines_of(text: str, name: str, schema: Any) -> Iterator[tuple[str, Any]]:
    """Yield (place, checked object) for each non-blank line of a text; `name` is that of its file."""
    # Only "\n" ends a line: texts may hold other characters that count as line ends elsewhere.
    for number, line in enumerate(text.split("\n"), start=1):
        place = f"{name}, line {number}"
        if line.strip():
            value = _decoded(line, place, _NO_LINES)
            yield place, checked(schema, value, place, _DAMAGED if isinstance(value, dict) else _NO_LINES)


def _decoded(text: str, place: str, remedy: str = _DAMAGED) -> Any:
    try:
        return load_json(text)
    except json.JSONDecodeError as error:
        problem = f"line {error.lineno}, column {error.colno}: {error.msg}; the text begins with {text[:60]!r}"
        raise UserError(f"{place}: not JSON ({problem})", remedy) from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place}: not sound JSON ({error})", remedy) from None


def is_flat(path: Path) -> bool:
    """Return whether a file is flat by its name; a file with one JSON value ends in `.json`."""
    return path.suffix.lower() in (".jsonl", ".csv")


def read_lines(path: Path, schema: Any = dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield (place, checked fields) of each line, of JSON, CSV or TSV by its name; UserError if one does not fit."""
    for place, row in _csv_lines(path) if path.suffix.lower() in (".csv", ".tsv") else read_json_lines(path):
        try:
            yield place, _adapter(schema).validate_python(row)
        except ValidationError as error:
            fields = [str(problem["loc"][0]) for problem in error.errors() if problem["loc"]]
            text, remedy = describe_validation_error(error), _DAMAGED
            if empty := [name for name in fields if row.get(name) == ""]:
                text, remedy = f"{', '.join(empty)}: not filled in", "fill the template in, then score it"
            elif all(problem["type"] == "literal_error" for problem in error.errors()):
                remedy = "write one of the expected values"
            raise UserError(f"{place}: {text}", remedy) from None


def _csv_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    tabs = path.suffix.lower() == ".tsv"
    reader = csv.DictReader(io.StringIO(read_text(path), newline=""), strict=True, delimiter="\t" if tabs else ",")
    try:
        header = [name.strip() for name in reader.fieldnames or ()]
        if len(set(header)) != len(header) or not all(header):
            raise UserError(f"{path}, line {reader.line_num}: got columns {shortened(header)}; expected unique names")
        for row in reader:
            place, cells = f"{path}, line {reader.line_num}", list(row.values())
            if len(cells) != len(header) or None in cells:
                shown = shortened([cell for cell in cells if cell is not None])
                raise UserError(
                    f"{place}: got {shown}; expected a cell for each of {header}",
                    remedy='put a text that holds a comma or a line end between quotes, "like, this"',
                )
            yield place, {name: None if cell == "null" else cell for name, cell in zip(header, cells, strict=True)}
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: not CSV ({error})") from None


def read_unique(lines: Iterable[tuple[str, Any]], key: str) -> dict[str, Any]:
    """Return the objects of (place, object) by the value of a field; UserError if two have the same."""
    rows: dict[str, Any] = {}
    for place, row in lines:
        name = getattr(row, key)
        if name in rows:
            raise UserError(f"{place}: {key} {name!r} is given twice; expected each once")
        rows[name] = row
    return rows


def refuse_unfilled(path: Path, texts: Iterable[str | None], noun: str) -> None:
    """Raise UserError if the file is a template that nobody filled in, in which every text is empty."""
    values = list(texts)
    if values and all(text == "" for text in values):
        raise UserError(f"{path}: no {noun} is filled in", remedy="fill the template in, then score it")


def check_ids(path: Path, noun: str, ids: Collection[str], known: Collection[str], *, all_of: str = "") -> None:
    """Check that predictions are about known items; UserError if an id is unknown, or missing.

    `noun` is the word for an item in messages. Missing ids are allowed if `all_of`, the remedy for them, is empty.
    """
    unknown = [name for name in ids if name not in known]
    if unknown:
        raise UserError(
            f"{path}: {noun} {unknown[0]!r} is not in the gold file ({len(unknown)} such); expected ids such as "
            f"{', '.join(list(known)[:3])}.{did_you_mean(unknown[0], known)}",
            remedy="name the gold file that these predictions were made for",
        )
    missing = [name for name in known if name not in ids]
    if missing and all_of:
        raise UserError(f"{path}: {noun} {missing[0]!r} is missing ({len(missing)} of {len(known)})", remedy=all_of)


def json_lines(rows: Iterable[Any]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def flat_text(path: Path, rows: Sequence[dict[str, Any]]) -> str:
    """Return the text of a flat file, in the form that its name says."""
    if path.suffix.lower() == ".jsonl":
        return json_lines(rows)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def file_in(path: Path, names: Sequence[str], option: str, noun: str) -> Path:
    """Return a file itself, or the first of the names that is found in a folder or below, the nearest one first.

    So RUN stands for RUN/eval/BENCH/NAME. UserError, in terms of the option and of the file (`noun`), if nothing is
    there, or the folder has none of the names, or one of them several times.
    """
    if path.is_file():
        return path
    if not path.is_dir():
        raise UserError(f"{option} {path}: no such file or folder", remedy=f"expected {noun}: {' or '.join(names)}")
    for name in names:
        files = sorted(path.rglob(name), key=lambda file: (len(file.parts), file))
        nearest = [file for file in files if len(file.parts) == len(files[0].parts)]
        if len(nearest) > 1:
            shown = ", ".join(str(file.relative_to(path)) for file in nearest[:_LISTED])
            raise UserError(f"{option} {path}: has {len(nearest)} files {name}: {shown}", f"name one: {option} FILE")
        if nearest:
            return nearest[0]
    content = sorted(f"{item.name}/" if item.is_dir() else item.name for item in path.iterdir())
    more = f" and {len(content) - _LISTED:,} more" if len(content) > _LISTED else ""
    raise UserError(
        f"{option} {path}: holds no {' or '.join(names)}; there is {', '.join(content[:_LISTED]) or 'nothing'}{more}",
        remedy=f"expected {noun}; name its folder, or the file itself: {option} FILE",
    )
