"""The one exception that is shown to a user as a message instead of a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something the user can mend: wrong input, a missing file, an unknown name.

    Args:
        message: what was wrong, the value that was found and what was expected.
        remedy: what to do about it; shown on a line of its own.
    """

    def __init__(self, message: str, remedy: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return self.message if self.remedy is None else f"{self.message}\n  remedy: {self.remedy}"


class ProcessError(UserError):
    """One that this process alone has met, of several; every other error of a user all of them meet alike."""


def shortened(value: object, length: int = 200) -> str:
    """A value as a message shows it: its repr, cut to `length` characters."""
    try:
        text = repr(value)
    except (RecursionError, ValueError) as error:  # ValueError: a number of more digits than Python prints
        return f"a {type(value).__name__} that cannot be shown ({error})"
    left_out = len(text) - length
    return text if left_out <= 0 else f"{text[:length]}… ({left_out:,} more characters)"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`" Did you mean 'x'?"` for the nearest known name, else the empty string."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" Did you mean {near[0]!r}?" if near else ""
