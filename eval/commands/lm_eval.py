"""`d2e lm-eval`: lm-evaluation-harness with this project's model and tasks."""

import argparse
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn
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
    import lm_eval.models  # the harness registers its own only while none is registered
    import lm_eval.tasks

    import eval.lm_eval.model  # noqa: F401  # registers the model

    verb = [] if arguments[0] in ("run", "ls", "validate") else ["run"]
    sys.argv = ["lm_eval", *verb, *arguments]
    tasks = mock.patch("lm_eval.tasks.TaskManager", partial(_with_tasks, lm_eval.tasks.TaskManager))
    with mock.patch.object(argparse.ArgumentParser, "error", _error), tasks:
        cli_evaluate()


def _error(parser: argparse.ArgumentParser, message: str) -> NoReturn:
    """Like argparse's own, but folded, as some messages of the harness list everything on one line."""
    parser.print_usage(sys.stderr)
    parser.exit(2, folded(f"{parser.prog}: error: {message}") + "\n")


def _with_tasks(manager: Callable[..., Any], *, include_path: str | None = None, **options: Any) -> Any:
    """The harness's manager of tasks with this project's folder, and the user's: it takes several only as a list."""
    paths = [] if include_path is None else include_path.split(os.pathsep)
    return manager(include_path=[str(TASKS), *paths], **options)
