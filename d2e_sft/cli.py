"""The `d2e` command: mounts the verbs, turns user errors into one message, holds no other logic.

Verbs are imported only when called, so `d2e --help` is quick and this package does not depend on `data_builders`
and `eval`.
"""

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

from d2e_sft import __version__
from d2e_sft.util.errors import ProcessError, UserError, did_you_mean, is_disk_full, path_error
from d2e_sft.util.paths import claim_packages, leave_working_folder
from d2e_sft.util.secrets import secret_in, without_secrets
from d2e_sft.util.signals import end_with_parent
from d2e_sft.util.startup import quieten
from d2e_sft.util.terminal import folded, folded_usage, quietly

_FULL = (
    "\n  remedy: make room on this disk. Earlier results are unchanged, and the same command resumes "
    "(d2e train --resume)"
)
# Group of the help → verb → (module, attribute, one line for the list of verbs)
GROUPS: dict[str, dict[str, tuple[str, str, str]]] = {
    "Start": {
        "quickstart": ("d2e_sft.commands.quickstart", "quickstart", "Train in three ways, see which use the context."),
        "doctor": ("d2e_sft.commands.doctor", "doctor", "Check this machine and installation."),
        "recipes": ("d2e_sft.commands.recipes", "recipes", "List, show and copy the bundled recipes."),
        "completion": ("d2e_sft.commands.completion", "completion", "Print a script for shell completion."),
    },
    "Data": {
        "data": ("data_builders.commands", "data", "Build, check, describe and publish EventSample data."),
    },
    "Train": {
        "train": ("d2e_sft.commands.train", "train", "Train a model from a recipe."),
        "sweep": ("eval.commands.sweep", "sweep", "Train and score a grid of recipes."),
        "bench": ("d2e_sft.commands.bench", "bench", "Measure speed and memory on this machine."),
    },
    "Evaluate": {
        "eval": ("eval.commands.evaluate", "evaluate", "Decode a benchmark with a model and score it."),
        "predict": ("eval.commands.predict", "predict", "Answer rows that have no answers yet."),
        "score": ("eval.commands.score", "score", "Score predictions as a related system's paper does."),
        "compare": ("eval.commands.compare", "compare", "Print the scores of several runs side by side."),
        "table": ("eval.commands.table", "table", "Lay scores out as the paper's tables, also for LaTeX."),
        "wiqa-baseline": ("eval.commands.wiqa", "wiqa_baseline", "Train and score WIQA's baselines: AdaBoost, BERT."),
        "errors": ("eval.commands.errors", "errors", "Sort a run's wrong answers by error pattern."),
        "lm-eval": ("eval.commands.lm_eval", "lm_eval", "Run lm-evaluation-harness with the debiased model."),
    },
    "Look": {
        "report": ("eval.commands.report", "report", "Write an HTML report of one or more runs."),
        "demo": ("eval.commands.demo", "demo", "Open a web page to ask a model about a context."),
        "chat": ("d2e_sft.commands.chat", "chat", "Talk with a model about a context, in the terminal."),
        "inspect": ("eval.commands.inspect", "inspect", "Show what a model thinks at each token of its answers."),
    },
    "Publish": {
        "serve": ("d2e_sft.commands.serve", "serve", "Serve a model, debiased, with or without vLLM."),
        "export": ("d2e_sft.commands.hub", "export", "Write a run as a plain checkpoint folder."),
        "push": ("d2e_sft.commands.hub", "push", "Publish a run on the Hub, with a card filled from it."),
        "pull": ("d2e_sft.commands.hub", "pull", "Download a model from the Hub."),
    },
}
_VERBS = {verb: entry for verbs in GROUPS.values() for verb, entry in verbs.items()}
_REMEDY = "pip install d2e-sft with its dependencies: pip install -e . in its clone"
# Verb → its subcommands that live in a package which the verb's own may not import.
_ADDED = {
    "data": {
        "tag": ("eval.commands.tag", "tag"),
        "wiqa-questions": ("eval.commands.wiqa", "wiqa_questions"),
    }
}
# What a verb uses of such a package, and gets by its name from its context's object.
_LENT = {
    "build": ("data_builders.commands.build", "build"),
    "closed_book": ("eval.run.habits", "closed_book"),
    "guess_habits": ("data_builders.quality.context_free", "guess_habits"),
    "open_rewriting": ("data_builders.build.writing", "open_rewriting"),
    "read_questions": ("data_builders.own_data.questions", "read_questions"),
}


class _LazyVerbs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _VERBS:
            return None
        module, attribute, _ = _VERBS[cmd_name]
        command: Any = _attribute(module, attribute)
        ctx.obj = lambda name: _attribute(*_LENT[name])
        for name, place in _ADDED.get(cmd_name, {}).items():
            command.add_command(_attribute(*place), name)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        # click would import every verb to ask it for its help, at each press of the key.
        verbs = [
            CompletionItem(verb, help=text) for verb, (_, _, text) in _VERBS.items() if verb.startswith(incomplete)
        ]
        return [*verbs, *click.Command.shell_complete(self, ctx, incomplete)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in _VERBS:
            owner = next((verb for verb, added in _ADDED.items() if args[0] in added), None)
            if owner is not None:
                ctx.fail(f"unknown verb {args[0]!r}; expected d2e {owner} {args[0]}")
            ctx.fail(f"unknown verb {args[0]!r}; expected one of {', '.join(_VERBS)}.{did_you_mean(args[0], _VERBS)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        group_width, width = max(map(len, GROUPS)), max(map(len, _VERBS))
        formatter.write_paragraph()
        for group, verbs in GROUPS.items():
            for index, (verb, (_, _, text)) in enumerate(verbs.items()):
                name = "" if index else group
                formatter.write(f"{name:<{group_width}}  {verb:<{width}}  {text}\n")


def _attribute(module: str, name: str) -> Any:
    claim_packages()
    return getattr(importlib.import_module(module), name)


@click.command(cls=_LazyVerbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="d2e")
def d2e() -> None:
    """Fine-tune and evaluate language models on event reasoning with D²E-SFT.

    `d2e VERB --help` explains a verb. Anywhere on the line, `--quiet` keeps results, warnings and errors, and leaves
    out explanations and progress; `--debug` shows the traceback of an error.

    Example: d2e quickstart
    """


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line; exits 0 on success, 1 on a user's error, 2 on a wrong call."""
    quieten()
    end_with_parent()
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug, quiet = "--debug" in arguments, "--quiet" in arguments
    try:
        _check_arguments(arguments)
        with quietly(quiet):
            run([argument for argument in arguments if argument not in ("--debug", "--quiet")])
    except (click.Abort, KeyboardInterrupt) as error:
        kept = str(error.__cause__ or error)  # click raises its own
        if os.environ.get("LOCAL_RANK", "0") == "0":
            click.echo(folded(f"d2e: stopped; {kept}" if kept else "d2e: stopped"), err=True)
        sys.exit(130)
    except click.ClickException as error:
        click.echo(without_secrets(folded_usage(error)), err=True)
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:  # as torch is in an environment that only scores
        package = (error.name or "").partition(".")[0]
        if debug or package in ("", "d2e_sft", "data_builders", "eval"):
            raise
        lacking = f"d2e: error: this needs {package}, which is not installed\n  remedy: {_REMEDY}"
        click.echo(folded(lacking), err=True)
        sys.exit(1)
    except Exception as error:
        full = not isinstance(error, UserError) and is_disk_full(error)
        shown = error if full else path_error(error) or error
        if debug or not (full or isinstance(shown, UserError | OSError)):
            raise
        # A problem that all processes meet is reported once.
        if os.environ.get("LOCAL_RANK", "0") == "0" or isinstance(error, ProcessError):
            click.echo(folded(without_secrets(f"d2e: error: {shown}{_FULL if full else ''}")), err=True)
        sys.exit(1)


def _check_arguments(arguments: Sequence[str]) -> None:
    """Raise for arguments that no record can hold: a key, which other users see there too, and bytes beside UTF-8."""
    for word in arguments:
        word.encode("utf-8")  # `path_error` has the message
    words = [word for before, word in zip(["", *arguments], arguments, strict=False) if before != "--api-key"]
    name = secret_in(word for word in words if not word.startswith("--api-key="))
    if name is not None:
        raise UserError(
            f"an argument contains the value of ${name}; expected no key or token on the command line",
            remedy="leave it out: d2e reads keys from the environment",
        )


def run(arguments: Sequence[str]) -> None:
    """Run one command line in this process; errors are raised, not printed."""
    d2e.main(args=list(arguments), prog_name="d2e", standalone_mode=False)


if __name__ == "__main__":
    leave_working_folder()
    main()
