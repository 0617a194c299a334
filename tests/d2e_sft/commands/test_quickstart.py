"""`d2e quickstart`: the commands that it prints and runs."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
import torch

from d2e_sft import cli
from d2e_sft.commands.quickstart import steps
from d2e_sft.model.loading import keeping_models
from tests.command import d2e, finish, output_of, refusal_of, start
from tests.factories import write_recipe

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


def test_a_folder_of_something_else_and_a_run_without_overwrite_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = cli.run
    monkeypatch.setattr(cli, "run", lambda words: run(words) if words[0] == "quickstart" else None)
    (tmp_path / "habit").mkdir()
    assert "--overwrite" in refusal_of("quickstart", "--out", tmp_path)
    assert "quickstart finished" in output_of("quickstart", "--out", tmp_path, "--overwrite")
    (tmp_path / "manifest.json").write_text("{}")
    assert "manifest.json, which no quickstart wrote" in refusal_of("quickstart", "--out", tmp_path, "--overwrite")


def test_one_process_leaves_what_a_process_for_each_command_leaves(world: Path, tmp_path: Path) -> None:
    """Weights and predictions byte for byte: no command leaves a seed, a precision or other state to the next."""
    recipes = {
        name: write_recipe(world, tmp_path / name, "train.max_steps=2", "model.lora={}", *overrides)
        for name, overrides in {
            "sft": ("d2e.objective=sft", "train.bf16=true"),
            "d2e": ("train.seed=1",),
        }.items()
    }  # fmt: skip

    def commands(out: Path) -> list[list[str]]:
        trained = [["train", str(recipe), f"train.output_dir={out / name}"] for name, recipe in recipes.items()]
        bench = ["--bench", str(world / "bench"), "--max-new-tokens", "6", "--dtype", "auto"]
        evaluated = [["eval", str(out / name), *bench] for name in recipes]
        return [*trained, *evaluated, ["eval", str(world / "model"), *bench, "--out", str(out / "base")]]

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in the other processes
    with keeping_models():
        assert [d2e(*words) for words in commands(tmp_path / "one")] == [0] * 5
    torch.set_num_threads(threads)
    for words in commands(tmp_path / "each"):
        ended = finish(start(tmp_path, words[1:], None, verb=words[0]))
        assert ended.status == 0, ended.printed
    files = [path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*")]
    compared = [path for path in files if path.name in ("adapter_model.safetensors", "predictions.jsonl")]
    assert len(compared) == 5
    for path in compared:
        assert (tmp_path / "one" / path).read_bytes() == (tmp_path / "each" / path).read_bytes(), path
