"""`d2e quickstart`: the commands that it prints and runs."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from d2e_sft import cli
from d2e_sft.commands.quickstart import steps


def command_of(words: list[str]) -> tuple[click.Command, list[str]]:
    """The innermost command of a line, and the words that it is given."""
    command: click.Command = cli.d2e
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), words[0])
        assert found is not None
        command, words = found, words[1:]
    return command, words


def test_every_step_is_a_command_that_d2e_takes() -> None:
    for words in steps(Path("runs/quickstart")):
        command, rest = command_of(words)
        command.make_context(str(command.name), rest)


def test_both_objectives_train_from_the_same_start_into_folders_of_their_own() -> None:
    trainings = [words for words in steps(Path("out")) if words[0] == "train"]
    assert [words[words.index("--method") + 1] for words in trainings] == ["sft", "full"]
    assert len({words[words.index("--model") + 1] for words in trainings}) == 1
    assert [word for words in trainings for word in words if word.startswith("train.output_dir=")] == [
        "train.output_dir=out/sft",
        "train.output_dir=out/d2e",
    ]


def test_steps_are_printed_and_run_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[list[str]] = []
    run = cli.run
    monkeypatch.setattr(cli, "run", lambda words: run(words) if words[0] == "quickstart" else ran.append(list(words)))
    cli.main(["quickstart", "--out", str(tmp_path)])
    assert ran == steps(tmp_path)
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("$ d2e ")]
    assert len(printed) == len(ran)
