"""`d2e lm-eval`: lm-evaluation-harness with this project's model and tasks."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NoReturn
from unittest import mock

import click

from d2e_sft.util.errors import UserError
from d2e_sft.util.terminal import folded

TASKS = Path(__file__).resolve().parent.parent / "lm_eval" / "tasks"


@click.command(
    "lm-eval",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[HARNESS ARGUMENTS]...")
def lm_eval(arguments: tuple[str, ...]) -> None:
    """Run lm-evaluation-harness with --model d2e and --tasks piper added.

    The harness finds only its own models by name, so this command registers ours first. All arguments are the
    harness's.

    Example: d2e lm-eval --model d2e --model_args pretrained=runs/d2e,alpha=0.5 --tasks piper --apply_chat_template
    """
    if not arguments or arguments[0] in ("-h", "--help"):
        click.echo(click.get_current_context().get_help())
        click.echo("\nThe tasks, for `lm_eval --include_path` with another model: " + str(TASKS))
        return
    try:
        from lm_eval.__main__ import cli_evaluate
    except ImportError as error:
        raise UserError("lm-evaluation-harness is not installed", "pip install 'd2e-sft[lm-eval]'") from error
    import lm_eval.models  # noqa: F401  # the harness registers its own only while none is registered

    import eval.lm_eval.model  # noqa: F401  # registers the model

    sys.argv = ["lm_eval", *_with_tasks(list(arguments))]
    with mock.patch.object(argparse.ArgumentParser, "error", _error):
        cli_evaluate()


def _error(parser: argparse.ArgumentParser, message: str) -> NoReturn:
    """Like argparse's own, but folded, as some messages of the harness list everything on one line."""
    parser.print_usage(sys.stderr)
    parser.exit(2, folded(f"{parser.prog}: error: {message}") + "\n")


def _with_tasks(arguments: list[str]) -> list[str]:
    """The arguments with this project's tasks added to the include path."""
    if "--include_path" in arguments:
        at = arguments.index("--include_path") + 1
        return [*arguments[:at], f"{TASKS}:{arguments[at]}", *arguments[at + 1 :]]
    at = 1 if arguments[0] in ("run", "ls", "validate") else 0
    return [*arguments[:at], *(["run"] if not at else []), *arguments[at:], "--include_path", str(TASKS)]
