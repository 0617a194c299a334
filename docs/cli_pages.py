"""Writes docs/reference/cli.md and a page for each group of commands from the program: `python docs/cli_pages.py`."""

import re
from collections.abc import Iterator
from pathlib import Path

import click

from d2e_sft.cli import GROUPS, d2e

FOLDER = Path(__file__).with_name("reference")
_MADE = "This page is made from the program: `python docs/cli_pages.py`."
_ABOUT = f"""\
# Commands

All commands of `d2e`, grouped by purpose. `d2e COMMAND --help` explains one in the terminal, with examples. Anywhere
on the line, `--debug` shows the traceback of an error, and `--quiet` keeps results, warnings and errors:

- kept are scores, tables with their titles, verdicts, recommendations, counts of bad rows and of contexts that
  were cut, and the names of files that were written;
- left out are progress, explanations of tables and measures, hints, and of `d2e data build` the counts, which its
  `manifest.json` has.

{_MADE}
"""


def pages() -> dict[Path, str]:
    """Each page with its text."""
    top = click.Context(d2e, info_name="d2e")
    overview, found = _ABOUT, {}
    for group, verbs in GROUPS.items():
        file = f"cli-{group.lower()}.md"
        commands = [context for verb in verbs for context in _commands(top, d2e, verb)]
        overview += f"\n## {group}\n\n| command | does |\n|---|---|\n"
        for context in commands:
            name = context.command_path
            overview += f"| [`{name}`]({file}#{name.replace(' ', '-')}) | {_first_sentence(context.command)} |\n"
        about = f"# Commands: {group.lower()}\n\nArguments and options of each command. {_MADE}\n"
        found[FOLDER / file] = about + "".join(_section(context) for context in commands)
    return {FOLDER / "cli.md": overview, **found}


def _commands(parent: click.Context, group: click.Group, name: str) -> Iterator[click.Context]:
    """The command with this name, or its subcommands."""
    command = group.get_command(parent, name)
    assert command is not None, name
    context = click.Context(command, info_name=name, parent=parent)
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            yield from _commands(context, command, inner)
    else:
        yield context


def _section(context: click.Context) -> str:
    usage = " ".join(context.command.collect_usage_pieces(context)).removeprefix("[OPTIONS]").strip()
    text = f"\n## {context.command_path}\n\n{_first_paragraph(context.command)}\n"
    text += f"\n```text\n{context.command_path} {usage}".rstrip() + "\n```\n"
    told = [option.get_help_record(context) for option in context.command.params if isinstance(option, click.Option)]
    rows = [f"| `{_escaped(names)}` | {_escaped(meaning)} |\n" for names, meaning in filter(None, told)]
    return text + ("\n| option | meaning |\n|---|---|\n" + "".join(rows) if rows else "")


def _first_paragraph(command: click.Command) -> str:
    return " ".join((command.help or "").split("\n\n")[0].replace("\b", "").split())


def _first_sentence(command: click.Command) -> str:
    return re.split(r"(?<=[.?!]) (?=[A-Z])", _first_paragraph(command))[0]


def _escaped(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", " ".join(text.split()))


if __name__ == "__main__":
    for file, text in pages().items():
        file.write_text(text, encoding="utf-8")
        print(f"written: {file} ({len(text.split())} words)")
