"""The exception that is shown to a user as a message instead of a traceback, and the wording of messages."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError

_MOST_PROBLEMS = 5


class UserError(Exception):
    """A problem that the user can fix: wrong input, a missing file, an unknown name.

    Args:
        message: what was wrong, the value found and the value expected.
        remedy: how to fix it; shown on its own line.
    """

    def __init__(self, message: str, remedy: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return self.message if self.remedy is None else f"{self.message}\n  remedy: {self.remedy}"


class ProcessError(UserError):
    """A problem of one process of a launch; all processes meet any other UserError together."""


def shortened(value: object, length: int = 200) -> str:
    """A value's repr for a message, cut to `length` characters."""
    try:
        text = repr(value)
    except (RecursionError, ValueError) as error:  # ValueError: a number with more digits than Python prints
        return f"a {type(value).__name__} that cannot be shown ({error})"
    left_out = len(text) - length
    return text if left_out <= 0 else f"{text[:length]}… ({left_out:,} more characters)"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`" Did you mean 'x'?"` for the nearest known name, or the empty string."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" Did you mean {near[0]!r}?" if near else ""


def describe_problem(item: Mapping[str, Any]) -> str:
    """One error of a pydantic ValidationError: the field, the value found, what was expected."""
    field, kind = ".".join(map(str, item["loc"])), item["type"]
    if kind == "missing":
        return f"{field}: missing; expected a value"
    is_empty = kind == "string_pattern_mismatch"
    message = "expected text that is not empty" if is_empty else item["msg"].removeprefix("Value error, ")
    return f"{field}: got {shortened(item['input'])}; {message}" if field else message


def describe_validation_error(
    error: ValidationError, describe: Callable[[Mapping[str, Any]], str] = describe_problem
) -> str:
    """A pydantic error as one line: its first five problems and the number of the others.

    Args:
        describe: the text of one problem.
    """
    parts = [describe(item) for item in error.errors()[:_MOST_PROBLEMS]]
    more = error.error_count() - len(parts)
    return "; ".join(parts) + (f"; and {more:,} more" if more else "")
