"""`d2e quickstart`: the commands that it prints and runs."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from d2e_sft import cli
from d2e_sft.commands.quickstart import steps
from tests.command import output_of

KEYS = ("train.output_dir", "data.train")


def command_of(words: list[str]) -> tuple[click.Command, list[str]]:
    """The innermost command of a line, and the words that it is given."""
    command: click.Command = cli.d2e
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), words[0])
        assert found is not None
        command, words = found, words[1:]
    return command, words


@pytest.mark.parametrize("seed", [None, 3])
def test_every_step_is_a_command_that_d2e_takes(seed: int | None) -> None:
    for words in steps(Path("runs/quickstart"), seed):
        command, rest = command_of(words)
        command.make_context(str(command.name), rest)


def test_another_seed_draws_other_stories_and_other_adapters() -> None:
    usual, other = steps(Path("out")), steps(Path("out"), 3)
    added = [[word for word in words if word not in before] for words, before in zip(other, usual, strict=True)]
    expected = {"data": ["--seed", "3"], "train": ["train.seed=3"]}
    assert added == [expected.get(words[0], []) for words in other]


def test_all_ways_train_from_the_same_start_into_folders_of_their_own_on_data_that_are_built() -> None:
    words = steps(Path("out"))
    trainings = [line for line in words if line[0] == "train"]
    assert [line[line.index("--method") + 1] for line in trainings] == ["sft-lora", "d2e-lora", "sft-lora"]
    assert len({line[line.index("--model") + 1] for line in trainings}) == 1
    of = {key: [w.partition("=")[2] for line in trainings for w in line if w.startswith(f"{key}=")] for key in KEYS}
    assert of["train.output_dir"] == ["out/sft", "out/d2e", "out/sft-swapped"]
    assert of["data.train"] == [f"out/{data}/train.parquet" for data in ("habit", "habit", "habit-swapped")]
    built = {line[line.index("--out") + 1] for line in words if line[:2] == ["data", "build"]}
    assert {str(Path(file).parent) for file in of["data.train"]} == built

    scored = [line for line in words if line[0] == "eval"]
    assert {line[line.index("--bench") + 1] for line in scored} == {"out/habit"}
    for verb in ("compare", "report"):
        (line,) = (line for line in words if line[0] == verb)
        assert line[1:5] == ["out/sft", "out/d2e", "out/sft-swapped", "out/base"]


def test_steps_are_printed_and_run_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []
    run = cli.run
    monkeypatch.setattr(cli, "run", lambda words: run(words) if words[0] == "quickstart" else ran.append(list(words)))
    assert output_of("quickstart", "--out", tmp_path).count("$ d2e ") == len(ran)
    assert ran == steps(tmp_path)
