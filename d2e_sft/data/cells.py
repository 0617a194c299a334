"""How values of typed columns become text: one rule for JSON, Parquet and datasets of the Hub.

A float is written as the file has it. A whole float is written as an integer, since an empty cell turns a column of
integers into floats, and 1998 into 1998.0.
"""

from __future__ import annotations

from datetime import date, datetime, time
from decimal import Decimal
from math import isfinite, isnan
from typing import Any

import pyarrow as pa

WHOLE, BOOLEANS, DATES = "whole floats without .0", "booleans as true or false", "dates in ISO 8601"


class JsonFloat(float):
    """A float of a JSON file with its own text: 1.50 stays 1.50."""

    text: str

    def __new__(cls, text: str) -> JsonFloat:
        number = super().__new__(cls, text)
        number.text = text
        return number


def as_text(value: object) -> tuple[str, str]:
    """Return a cell as text, and how it was changed: WHOLE, BOOLEANS, DATES or ""; null is "".

    ValueError, with what was expected, for a value of another kind.
    """
    match value:
        case None | str():
            return value or "", ""
        case bool():
            return str(value).lower(), BOOLEANS
        case float() if isfinite(value):
            text = value.text if isinstance(value, JsonFloat) else repr(float(value))
            whole = text.removesuffix(".0")
            return "0" if whole == "-0" else whole, WHOLE if whole != text else ""
        case Decimal() if value.is_finite():
            return format(value, "f"), ""
        case int():
            return str(value), ""
        case date() | time():
            return _iso(value), DATES
    raise ValueError("text, a finite number, a boolean or a date")


def _iso(value: date | time) -> str:
    """Return a date or time in ISO 8601; midnight without a time zone is a date, as tables store dates."""
    if isinstance(value, datetime) and value.tzinfo is None and value.time() == time():
        return value.date().isoformat()
    return value.isoformat()


def is_nan(value: Any) -> bool:
    """Return whether a value is NaN, or pandas' NaT or NA."""
    return type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float | Decimal) and isnan(value))


def has_floats(kind: pa.DataType) -> bool:
    """Return whether an Arrow type is a float, or a list or struct that may hold some."""
    return any(name in str(kind) for name in ("float", "double"))


def stored(value: Any, kind: pa.DataType) -> Any:
    """Return a value of an Arrow column with None for NaN, and float32 as the shortest float that reads the same.

    Python widens float32, so that 0.1 would be 0.10000000149011612.
    """
    if isinstance(value, float):
        narrow = pa.types.is_float32(kind) or pa.types.is_float16(kind)
        return None if isnan(value) else float(str(kind.to_pandas_dtype()(value))) if narrow else value
    if isinstance(value, list) and hasattr(kind, "value_type"):
        return [stored(item, kind.value_type) for item in value]
    if isinstance(value, dict) and pa.types.is_struct(kind):
        types = {field.name: field.type for field in kind}
        return {name: stored(item, types[name]) if name in types else item for name, item in value.items()}
    return value
