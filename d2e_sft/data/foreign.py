"""Detect files whose rows are not samples yet, and suggest a description that maps them."""

import csv
import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from d2e_sft.data.sample import EventSample
from d2e_sft.util.errors import UserError

_TABLES = (".csv", ".tsv", ".json")
# Usual names of the parts of a row, the likeliest first.
_USUAL_NAMES: dict[str, tuple[str, ...]] = {
    "context": ("context", "passage", "document", "premise", "story", "article", "background", "paragraph", "text"),
    "question": ("question", "query", "ask", "hypothesis", "instruction", "prompt", "input"),
    "answer": ("answer", "answers", "label", "response", "output", "completion", "target", "gold", "reply"),
    "options": ("options", "choices", "candidates"),
    "messages": ("messages", "conversations", "conversation", "dialogue", "dialog", "turns", "chat"),
}


def nearest_columns(
    fmt: str, names: Iterable[str], column_of: Mapping[str, object] | None = None, *, by_turns: bool = False
) -> str:
    """Return `columns: {…}` for a description: by part that of `column_of`, the nearest name, or `…`."""
    columns = list(names)
    kept = {part: name for part, name in (column_of or {}).items() if name in columns}
    left = [name for name in columns if name not in kept.values()]
    parts = ["messages"] if by_turns else ["context", "question", "answer"]
    if fmt in ("scq", "mcq") and not by_turns:
        parts.insert(2, "options")
    chosen = []
    for part in parts:
        name = kept.get(part) or _nearest(part, left)
        if part == "messages" and name is None and {"prompt", "completion"} <= {*columns}:  # TRL's, as turns
            name = "[prompt, completion]"
        left = [column for column in left if column != name]
        chosen.append(f"{part}: {name or '…'}")
    return f"columns: {{{', '.join(chosen)}}}"


def _nearest(part: str, names: Sequence[str]) -> str | None:
    lower = {name.lower(): name for name in names}
    matches = [*(name for name in _USUAL_NAMES[part] if name in lower)]
    for name in _USUAL_NAMES[part]:
        matches += difflib.get_close_matches(name, list(lower), n=1, cutoff=0.75)
    return lower[matches[0]] if matches else None


def description_of(name: str, columns: Sequence[str]) -> str:
    """Return the YAML that maps a file with these columns to samples, indented for a message."""
    chat = _nearest("messages", columns)
    lines = [f"train: {name}", "test: 0.2"]
    if chat:
        lines += ["format: chat", "context_in: <context>   # or a role, or none; or a column under columns"]
        lines += [f"columns: {{messages: {chat}}}"] if chat != "messages" else []
    else:
        lines += ["format: qa", "relation: none", nearest_columns("qa", columns)]
    return "\n".join(f"    {line}" for line in lines)


def refuse_foreign(path: Path, *, first_row: bool = True) -> None:
    """Raise UserError if a file's ending, or its first row (if `first_row`), is not that of a file of samples."""
    if path.suffix in _TABLES:
        raise _foreign(path, f"is {path.suffix.removeprefix('.').upper()}")
    columns = columns_of(path) if first_row else []
    missing = [name for name, field in EventSample.model_fields.items() if field.is_required() and name not in columns]
    if columns and len(missing) > 1:
        raise _foreign(path, f"its rows lack {', '.join(missing)}")


def _foreign(path: Path, problem: str) -> UserError:
    columns = columns_of(path)
    having = f"; it has the columns {', '.join(map(repr, columns))}" if columns else ""
    return UserError(
        f"{path}: {problem}; expected samples, as `d2e data build` writes them{having[:300]}",
        remedy=f"describe it in a file mine.yaml next to it, for example\n{description_of(path.name, columns)}\n"
        f"  then: d2e data build --datasets {path.parent / 'mine.yaml'} --out data/mine\n"
        "  and train with data.train=data/mine/train.parquet",
    )


def columns_of(path: Path) -> list[str]:
    """Return the columns of a CSV, TSV, JSONL or Parquet file, by its first row; none if it cannot be read."""
    try:
        if path.suffix == ".json":
            return []
        if path.suffix == ".parquet":
            return list(pq.read_schema(path).names)
        with path.open(encoding="utf-8-sig", newline="") as lines:
            if path.suffix in (".csv", ".tsv"):
                return next(csv.reader(lines, delimiter="\t" if path.suffix == ".tsv" else ","), [])
            row = json.loads(next((line for line in islice(lines, 1_000) if line.strip()), ""))
    except (OSError, ValueError, RecursionError, csv.Error, pa.ArrowException):
        return []
    return list(row) if isinstance(row, dict) else []
