"""Rejected rows, kept in a file next to the output that lacks them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from d2e_sft.util.files import replacing

BAD_ROWS_FILE = "bad_rows.jsonl"
# `file`, `line` (or `item` of a JSON array), `error`, and `row`, its content as read.
BadRow = dict[str, Any]


def write_bad_rows(bad: Sequence[BadRow], target: Path) -> None:
    """Write rejected rows as JSONL, lone surrogates as escapes; without any, remove an earlier file."""
    if not bad:
        target.unlink(missing_ok=True)
        return
    with replacing(target) as partial, partial.open("w", encoding="utf-8", errors="backslashreplace") as out:
        out.writelines(json.dumps(entry, ensure_ascii=False, default=str) + "\n" for entry in bad)
