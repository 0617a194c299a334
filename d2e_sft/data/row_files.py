"""Read and write rows as `.parquet` or `.jsonl`; those read are not checked yet, and come with their line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from d2e_sft.util.errors import UserError, shortened
from d2e_sft.util.files import object_with_unique_keys, replacing

AS_JSON = ("meta", "conversation")  # text in Parquet: a struct column would force one shape on all rows
# About a million tokens of English. Without a limit, a context of 10 MB takes gigabytes to tokenise, then is too long.
MOST_CHARACTERS = 4_000_000
_LONGEST_LINE = 12 * MOST_CHARACTERS  # bytes; a character outside the basic plane is two escapes of six bytes
_TEXT, _TEXTS = pa.string(), pa.list_(pa.string())
_COLUMNS = {
    **dict.fromkeys(("id", "dataset", "split", "relation", "format"), _TEXT),
    **dict.fromkeys(("context", "refined_context", "question"), _TEXT),
    **dict.fromkeys(("options", "answers"), _TEXTS),
    "meta": _TEXT,
    # Only in files in which a row has another value than the default:
    "subset": _TEXT,
    "habit": _TEXTS,
    "rejected": _TEXTS,
    "conversation": _TEXT,
}
_TOO_LONG = f"has more than {_LONGEST_LINE:,} bytes; expected at most {MOST_CHARACTERS:,} characters of text in a row"


def parquet_rows(path: Path) -> Iterator[tuple[int, Any, str | None]]:
    """Yield (line, row, problem) for each row; `problem` is set if the row could not be parsed."""
    try:
        rows = pq.ParquetFile(path).read().to_pylist()
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path}: not a readable Parquet file ({path.stat().st_size:,} bytes: {error})",
            remedy="the file is truncated or not Parquet; build or copy it again",
        ) from None
    for line, row in enumerate(rows, start=1):
        problem = None
        for name in AS_JSON:
            if isinstance(row.get(name), str):
                try:
                    row[name] = json.loads(row[name])
                except (ValueError, RecursionError) as error:
                    problem = f"{name}: got {shortened(row[name])}; expected a JSON object ({error})"
        yield line, row, problem


def jsonl_rows(path: Path) -> Iterator[tuple[int, Any, str | None]]:
    """Yield (line, row, problem) for each line that is not blank; of a line that is too long, only its beginning."""
    with path.open("rb") as source:
        for line, raw in enumerate(iter(lambda: source.readline(_LONGEST_LINE), b""), start=1):
            if len(raw) == _LONGEST_LINE:
                yield line, raw[:1000].decode("utf-8", errors="replace"), _TOO_LONG
                rest = raw
                while rest and not rest.endswith(b"\n"):
                    rest = source.readline(_LONGEST_LINE)
                continue
            if not raw.strip():
                continue
            try:
                row = json.loads(raw.decode("utf-8-sig"), object_pairs_hook=object_with_unique_keys)
            except (ValueError, RecursionError) as error:
                yield line, raw.decode("utf-8", errors="replace"), f"not a JSON object in UTF-8 ({error})"
                continue
            problem = None if isinstance(row, dict) else f"got {shortened(row)}; expected a JSON object"
            yield line, row, problem


def write_rows(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Write the rows of samples; columns that few files need are left out, and the same rows give the same bytes."""
    tagged = any(row["subset"] or row["habit"] for row in rows)
    used = {name: any(row[name] for row in rows) for name in ("rejected", "conversation")}
    used |= {"subset": tagged, "habit": tagged}
    columns = {name: kind for name, kind in _COLUMNS.items() if used.get(name, True)}
    rows = [{name: row[name] for name in columns} for row in rows]
    with replacing(path) as partial:
        if path.suffix == ".parquet":
            for row in rows:
                for name in AS_JSON:
                    if row.get(name) is not None:
                        row[name] = json.dumps(row[name], ensure_ascii=False, sort_keys=True)
            pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema(columns)), partial, compression="zstd")
        else:
            with partial.open("w", encoding="utf-8") as out:
                out.writelines(json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n" for row in rows)
