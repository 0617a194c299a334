"""Lines of a flat file: JSON lines, or CSV with a line of columns, whose `null` is an answer that was not read."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field

from d2e_sft.util.errors import UserError, shortened
from eval.systems.files import NotFittingError, Row, checked, json_lines, read_json_lines, read_text

Line = dict[str, Any]
ENDINGS = (".jsonl", ".csv")
_MOST_STEPS = 1_000
StepNumber = Annotated[int, Field(ge=1, le=_MOST_STEPS)]
OptionalStep = Annotated[StepNumber | None, BeforeValidator(lambda value: None if value == "" else value)]


class FlatRow(Row):
    """Base of the schemas of lines; numbers count as texts, as they do in CSV."""

    model_config = ConfigDict(coerce_numbers_to_str=True)


def is_flat(path: Path) -> bool:
    """Return whether a file is flat by its name; a file with one JSON value ends in `.json`."""
    return path.suffix.lower() in ENDINGS


def read_lines(path: Path, schema: Any = dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield (place, checked fields) of each line; JSON lines unless named `.csv`; UserError if a line does not fit."""
    lines = _csv_lines(path) if path.suffix.lower() == ".csv" else read_json_lines(path)
    return ((place, _fitting(schema, row, place)) for place, row in lines)


def _fitting(schema: Any, row: Line, place: str) -> Any:
    """Like `checked`; an empty field that may not be empty is one that nobody filled in."""
    try:
        return checked(schema, row, place)
    except NotFittingError as error:
        if empty := [name for name in error.fields if row.get(name) == ""]:
            raise UserError(
                f"{place}: {', '.join(empty)}: not filled in", "fill the template in, then score it"
            ) from None
        if error.is_choice:
            raise UserError(error.message, "write one of the expected values") from None
        raise


def _csv_lines(path: Path) -> Iterator[tuple[str, Line]]:
    reader = csv.DictReader(io.StringIO(read_text(path), newline=""), strict=True)
    try:
        header = [name.strip() for name in reader.fieldnames or ()]
        if len(set(header)) != len(header) or not all(header):
            raise UserError(f"{path}, line {reader.line_num}: got columns {shortened(header)}; expected unique names")
        for row in reader:
            place, cells = f"{path}, line {reader.line_num}", list(row.values())
            if len(cells) != len(header) or None in cells:
                got = shortened([cell for cell in cells if cell is not None])
                raise UserError(
                    f"{place}: got {got}; expected a cell for each of {header}",
                    remedy='put a text that holds a comma or a line end between quotes, "like, this"',
                )
            yield place, {name: None if cell == "null" else cell for name, cell in zip(header, cells, strict=True)}
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: not CSV ({error})") from None


def write_lines(path: Path, rows: Iterable[Line]) -> str:
    """Return the text of a flat file, in the form that its name says."""
    listed = list(rows)
    if path.suffix.lower() == ".jsonl":
        return json_lines(listed)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(listed[0]) if listed else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(listed)
    return text.getvalue()


def refuse_unfilled(path: Path, texts: Iterable[str | None], what: str) -> None:
    """Raise UserError if the file is a template that nobody filled in, in which every text is empty."""
    listed = list(texts)
    if listed and all(text == "" for text in listed):
        raise UserError(f"{path}: no {what} is filled in", remedy="fill the template in, then score it")
