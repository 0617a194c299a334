"""Messages as wide as the terminal, and which of them `--quiet` leaves out."""

import io
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

QUIET = "D2E_QUIET"  # environment variable that processes started by this one inherit
# Bars of huggingface_hub and transformers, and of datasets.
_OF_OTHERS = ("HF_HUB_DISABLE_PROGRESS_BARS", "HF_DATASETS_DISABLE_PROGRESS_BARS")
WIDTH = 100  # characters of a line when the output is piped
_LEAST = 40
_INDENT = 4  # for the continuation of a folded line
_WHOLE_WORDS: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
_LEAD = re.compile(r"\s*(?:remedy: |then: )?")
_COMMAND = re.compile(r"(?:[A-Z][A-Z0-9_]*=\S+ )*(?:d2e|pip|python|make|git|accelerate) ")
_PROSE = re.compile(r"[,;:.] |[,;:.…)]$")  # marks a sentence that begins with a command


def terminal_width() -> int:
    """The terminal's width in characters, at least 40; 100 when the output is piped."""
    return max(shutil.get_terminal_size((WIDTH, 24)).columns, _LEAST)


def filled(text: str, width: int | None = None, *, lead: str = "") -> str:
    """Fold a paragraph to a width (None: the terminal's); lines after the first are indented by the lead's length."""
    room = max(width or terminal_width(), len(lead) + 20)
    indent = " " * len(lead)
    return textwrap.fill(text, room, initial_indent=lead, subsequent_indent=indent, **_WHOLE_WORDS) or lead.rstrip()


def folded(message: str) -> str:
    """Return the message with each line folded to the terminal's width.

    A folded command ends its lines in a backslash. Words are never cut, so a long path stays whole.
    """
    width = terminal_width()
    return "\n".join(_fold(line, width) for line in message.splitlines())


def is_quiet() -> bool:
    """Whether only results, warnings and errors are wanted: no explanations, hints or progress."""
    return os.environ.get(QUIET) == "1"


@contextmanager
def quietly(quiet: bool) -> Iterator[None]:
    """Show only results, warnings and errors inside, if that is wanted, here and in processes that are started."""
    names = (QUIET, *_OF_OTHERS) if quiet else ()
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def say(message: str, *, err: bool = False) -> None:
    """Print a note on stdout, or stderr, unless `--quiet` was given."""
    if not is_quiet():
        print(message, file=sys.stderr if err else sys.stdout, flush=True)


def warn(message: str) -> None:
    """Print a warning on stderr, folded."""
    print(folded(f"warning: {message}"), file=sys.stderr, flush=True)


def folded_usage(error: click.ClickException) -> str:
    """The usage and the error that click shows for a wrong call, folded."""
    shown = io.StringIO()
    error.show(file=shown)
    return folded(shown.getvalue().rstrip())


def _fold(line: str, width: int) -> str:
    if len(line) <= width:
        return line
    lead = _LEAD.match(line)
    text = line[lead.end() if lead else 0 :]
    is_command = _COMMAND.match(text) is not None and _PROSE.search(text) is None
    lines = textwrap.wrap(
        line,
        width - 2 * is_command,
        subsequent_indent=" " * (len(line) - len(line.lstrip()) + _INDENT),
        **_WHOLE_WORDS,
    )
    return (" \\\n" if is_command else "\n").join(lines)
