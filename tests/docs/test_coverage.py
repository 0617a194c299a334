"""Each command that docs/explanation/coverage.md shows for a ✓ is one that the program takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from d2e_sft.config.lookup import require_recipe
from d2e_sft.config.recipe import load_recipe
from data_builders.sources import SOURCES
from eval.systems.registry import ROWS, SYSTEM_NAMES, load_system
from tests.command import verbs

PAGE = Path(__file__).resolve().parents[2] / "docs/explanation/coverage.md"
STATUSES = ("✓", "part", "open", "–")
VERBS = verbs()


def rows() -> list[list[str]]:
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    found = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [row for row in found if row[0] != "element"]


def commands() -> list[str]:
    return [command for row in rows() for command in re.findall(r"`(d2e [^`]+)`", row[-1])]


def check(words: list[str]) -> None:
    """Fail if a verb, an option, a choice, a recipe, a system's option or a file of the project does not exist."""
    own = next(words[:n] for n in range(len(words), 0, -1) if tuple(words[:n]) in VERBS)
    command, rest = VERBS[tuple(own)], words[len(own) :]
    context = click.Context(command, info_name=" ".join(own))
    parsed, _, _ = command.make_parser(context).parse_args(list(rest))
    options = {name: value for name, value in parsed.items() if isinstance(value, str | tuple | list | bool)}
    arguments: list[str] = []
    for parameter in command.params:
        value = options.get(parameter.name)
        if isinstance(parameter, click.Argument):
            given_words = (value,) if isinstance(value, str) else value or ()
            arguments += [word for word in given_words if isinstance(word, str)]
        elif isinstance(parameter.type, click.Choice) and value is not None:
            parameter.type_cast_value(context, value)
    if own == ["train"]:
        composed = options.get("model") or arguments.pop(0)
        composed += f"/{options['method']}" if "method" in options else ""
        load_recipe(require_recipe(composed).name, arguments)
    if own == ["sweep"] and arguments[0].endswith(".yaml"):
        assert (PAGE.parents[2] / arguments[0]).is_file(), arguments[0]
    named = {"build": (options.get("datasets") or "").split(","), "show": arguments[:1]} if own[0] == "data" else {}
    assert {*named.get(own[-1], ())} <= {"", *SOURCES}
    system = options.get("bench") if own == ["eval"] else arguments[0] if own == ["score"] else None
    if system in (*SYSTEM_NAMES, ROWS):
        loaded = load_system(system)
        model = loaded.options if own == ["eval"] else loaded.score_options
        given = dict(word.split("=", 1) for word in options.get("given") or ())
        model.model_validate(given)


def test_every_row_has_a_status_and_every_tick_a_command() -> None:
    found = rows()
    assert len(found) > 90
    assert [row for row in found if len(row) != 4 or row[2] not in STATUSES] == []
    assert [row for row in found if row[2] == "✓" and "`d2e " not in row[3]] == []


@pytest.mark.parametrize("command", sorted(set(commands())))
def test_a_command_exists(command: str) -> None:
    check(shlex.split(command)[1:])


@pytest.mark.parametrize(
    "wrong",
    ["evall MODEL", "eval MODEL --bensh crepe", "eval MODEL --bench crepe --set prompt=prose", "train --model gpt",
     "eval MODEL --suite pipper", "data show traci", "train --model smollm2-135m --method d2e d2e.alpa=1"],
)  # fmt: skip
def test_a_wrong_command_is_found(wrong: str) -> None:
    with pytest.raises((Exception, SystemExit)):
        check(shlex.split(wrong))
