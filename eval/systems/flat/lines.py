"""Lines of a flat file of predictions: JSON lines, or CSV whose first line names the columns.

A CSV cell is a text; `null` in it is JSON's null, an answer that could not be read.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from d2e_sft.util.errors import UserError
from eval.systems.json_file import json_lines, read_json_lines, read_text, shown

Line = dict[str, Any]
ENDINGS = (".jsonl", ".csv")


def is_flat(path: Path) -> bool:
    """Whether a file is flat by its name; JSON of one value is `.json`."""
    return path.suffix.lower() in ENDINGS


def read_lines(path: Path) -> Iterator[tuple[str, Line]]:
    """(place, fields) for each line that is not blank; a file that is not `.csv` is JSON lines.

    Raises:
        UserError: the file cannot be read, a line is no JSON object, or has more or fewer cells than the header.
    """
    if path.suffix.lower() != ".csv":
        return read_json_lines(path)
    return _csv_lines(path)


def _csv_lines(path: Path) -> Iterator[tuple[str, Line]]:
    reader = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    header: list[str] | None = None
    try:
        for cells in reader:
            place = f"{path}, line {reader.line_num}"
            if not any(cell.strip() for cell in cells):
                continue
            if header is None:
                header = _header([cell.strip() for cell in cells], place)
                continue
            if len(cells) != len(header):
                raise UserError(
                    f"{place}: got {len(cells)} cells: {shown(cells)}; expected {len(header)}: {', '.join(header)}",
                    remedy='put a text that holds a comma or a line end between quotes, "like, this"',
                )
            yield place, {name: None if cell == "null" else cell for name, cell in zip(header, cells, strict=True)}
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: not CSV ({error})") from None


def _header(names: list[str], place: str) -> list[str]:
    if len(set(names)) != len(names) or not all(names):
        raise UserError(f"{place}: got the columns {', '.join(map(repr, names))}; expected names, each once")
    return names


def write_lines(path: Path, rows: Iterable[Line]) -> str:
    """The text of a flat file, in the form that its name says.

    Raises:
        UserError: the name ends in neither .jsonl nor .csv.
    """
    if not is_flat(path):
        raise UserError(f"{path}: expected a name that ends in {' or '.join(ENDINGS)}", "name another file")
    listed = list(rows)
    if path.suffix.lower() == ".jsonl":
        return json_lines(listed)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(listed[0]) if listed else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(listed)
    return text.getvalue()


def fields(row: Line, names: Sequence[str], place: str) -> list[str]:
    """The texts of some fields, which may be empty; a number is its text.

    Raises:
        UserError: a field is missing, or something else.
    """
    return [_field(row, name, place) for name in names]


def _field(row: Line, name: str, place: str) -> str:
    if name not in row:
        raise UserError(f"{place}: {name}: missing; expected the fields of the others (there is {', '.join(row)})")
    value = row[name]
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise UserError(f"{place}: {name}: got {shown(value)}; expected text")
    return value


def whole(text: str, name: str, place: str, most: int | None = None) -> int:
    """A whole number from 1 on.

    Args:
        most: the highest that there is.

    Raises:
        UserError: it is something else.
    """
    found = int(text) if text.strip().isdecimal() else 0
    if not 1 <= found <= (most or found):
        to = "" if most is None else f" to {most}"
        raise UserError(f"{place}: {name}: got {text!r}; expected a whole number from 1{to or ' on'}")
    return found


def refuse_unfilled(path: Path, texts: Iterable[str | None], what: str) -> None:
    """Refuse a template that nobody filled in: every text is the empty one.

    Raises:
        UserError: it is such a file.
    """
    listed = list(texts)
    if listed and all(text == "" for text in listed):
        raise UserError(f"{path}: no {what} is filled in", remedy="fill the template in, then score it")
