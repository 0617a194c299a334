"""`d2e` as the tests call it: in this process, with its exit status."""

from __future__ import annotations

from pathlib import Path

from d2e_sft import cli


def d2e(*arguments: str | Path | int) -> int:
    """Run the command line; the exit status."""
    try:
        cli.main([str(argument) for argument in arguments])
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0
