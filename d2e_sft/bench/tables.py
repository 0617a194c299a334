"""Records of measurements as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from d2e_sft.util.table import Table

Columns = Mapping[str, tuple[str, str]]  # name → field of a row and its format, such as ("plain_ms", "{:,.0f}")


def fields_table(columns: Columns, rows: Sequence[Mapping[str, Any]], *, keys: int = 1) -> Table:
    """Return the rows as a table, without columns that have no value."""
    shown = {name: own for name, own in columns.items() if any(row[own[0]] is not None for row in rows)}
    cells = [["" if row[key] is None else form.format(row[key]) for key, form in shown.values()] for row in rows]
    return Table.of(list(shown), cells, keys=keys)
