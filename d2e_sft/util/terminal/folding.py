"""Messages as wide as the terminal: long lines are folded between words, and a command can still be pasted."""

from __future__ import annotations

import io
import re
import shutil
import sys
import textwrap

import click

from d2e_sft.util.tables import WIDTH

_LEAST = 40  # columns, however narrow the terminal says it is
_DEEPER = 4  # columns that the rest of a folded line is indented by
_LEAD = re.compile(r"\s*(?:remedy: |then: )?")
_COMMAND = re.compile(r"(?:[A-Z][A-Z0-9_]*=\S+ )*(?:d2e|pip|python|make|git|accelerate) ")
_PROSE = re.compile(r"[,;:.] |[,;:.…)]$")  # tells a sentence that begins with a command from the command itself


def folded(message: str) -> str:
    """The message with each line folded to the terminal's width, 100 columns where there is no terminal.

    Lines that are a command end in a backslash where they are folded. Words are never cut, so a path that is longer
    than a line stays whole.
    """
    width = max(shutil.get_terminal_size((WIDTH, 24)).columns, _LEAST)
    return "\n".join(_fold(line, width) for line in message.splitlines())


def warn(message: str) -> None:
    """Print a warning on stderr, folded."""
    print(folded(f"warning: {message}"), file=sys.stderr, flush=True)


def folded_usage(error: click.ClickException) -> str:
    """What click shows of a wrong call, the usage and the error, folded."""
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
        subsequent_indent=" " * (len(line) - len(line.lstrip()) + _DEEPER),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return (" \\\n" if is_command else "\n").join(lines)
