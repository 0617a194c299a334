"""`d2e train` and `d2e quickstart`: what a user types and what is trained."""

import os
import subprocess
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import click
import pytest
import torch
from transformers import TrainingArguments

from d2e_sft import cli
from d2e_sft.commands.quickstart import run_side_by_side, steps
from d2e_sft.config.recipe import D2ESection, Recipe, load_recipe
from d2e_sft.data.data_record import DATA_FILE, DataRecord, DataSource
from d2e_sft.data.sample import write_samples
from d2e_sft.model.loading import keeping_models
from d2e_sft.train import launch
from d2e_sft.train import run as train
from d2e_sft.train.config import D2EConfig
from d2e_sft.util.errors import UserError
from tests.command import d2e, finish, output_of, refusal_of, start
from tests.factories import write_recipe
from tests.tiny import make_samples


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path, rows = tmp_path / "recipe.yaml", tmp_path / "rows.jsonl"
    write_samples(make_samples(8), rows)
    path.write_text(f"data: {{train: {rows}}}\ntrain: {{output_dir: {tmp_path / 'run'}}}\n", encoding="utf-8")
    return path


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Recipe, bool]]:
    """The recipes that were trained, and whether they were resumed; nothing is done."""
    calls: list[tuple[Recipe, bool]] = []

    def record(loaded: Recipe, *, resume: bool, overwrite: bool) -> Path:
        calls.append((loaded, resume))
        return Path(loaded.train.output_dir)

    monkeypatch.setattr(train, "train_recipe", record)
    return calls


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that were launched on a machine with eight accelerators; nothing is started."""
    commands: list[list[str]] = []
    monkeypatch.setattr(launch, "accelerators", lambda: 8)
    monkeypatch.setattr(launch, "launch", lambda command: commands.append(command) or 0)
    monkeypatch.setattr(subprocess, "Popen", None)
    return commands


@pytest.mark.parametrize("begun", [False, True])
def test_auto_resume_continues_a_run_that_was_begun_and_begins_another(
    recipe: Path, begun: bool, trained: list[tuple[Recipe, bool]], launched: list[list[str]]
) -> None:
    if begun:
        # The run has the precision that its machine chose, and the recipe none.
        loaded, run = load_recipe(recipe, ["train.bf16=true"]), recipe.parent / "run"
        loaded.save(run)
        begun_on = DataRecord(source=DataSource.of(loaded), samples=8, tokens_sha256="", processes=1, versions={})
        (run / DATA_FILE).write_text(begun_on.model_dump_json(), encoding="utf-8")
    assert d2e("train", recipe, "--auto-resume") == 0
    assert [resume for _, resume in trained] == [begun]
    assert d2e("train", recipe, "--auto-resume", "--launch", "ddp") == 0
    assert ("--resume" in launched[0]) is begun, "decided once for all processes"
    assert "--auto-resume" not in launched[0]
    if begun:  # and finished since
        for name in ("trainer_state.json", "model.safetensors"):
            (run / name).write_text('{"global_step": 4}')
        assert d2e("train", recipe, "--auto-resume") == 0
        assert len(trained) == 1, "there is nothing left to train"
        assert d2e("train", recipe, "--auto-resume", "train.seed=9") == 0
        assert len(trained) == 2, "another recipe is refused where it is compared"


@pytest.mark.parametrize(
    ("words", "name", "overrides"),
    [
        ("--model qwen3-0.6b --method d2e-lora train.seed=1 d2e.alpha=0.7", "qwen3-0.6b/d2e-lora", True),
        ("train.seed=1 --model qwen3-0.6b d2e.alpha=0.7 --method d2e-lora", "qwen3-0.6b/d2e-lora", True),
        ("qwen3-0.6b/d2e-lora train.seed=1 d2e.alpha=0.7", "qwen3-0.6b/d2e-lora", True),
        ("--model qwen3-0.6b", "qwen3-0.6b/d2e", False),
    ],
)
def test_a_model_and_a_method_are_one_recipe(
    trained: list[tuple[Recipe, bool]], words: str, name: str, overrides: bool
) -> None:
    assert d2e("train", *words.split()) == 0
    assert trained == [(load_recipe(name, ["train.seed=1", "d2e.alpha=0.7"] if overrides else []), False)]


def test_d2e_is_trained_wherever_no_objective_is_named(recipe: Path, trained: list[tuple[Recipe, bool]]) -> None:
    assert d2e("train", "--model", "qwen3-0.6b") == d2e("train", recipe) == 0
    published = D2ESection(objective="d2e", debias=True, distill=True, alpha=0.5)
    assert [loaded.d2e for loaded, _ in trained] == [published, published]
    arguments = TrainingArguments(output_dir=str(recipe.parent), use_cpu=True)
    assert D2EConfig(str(recipe.parent)).d2e == D2EConfig.of(arguments).d2e == published


def test_launched_processes_get_one_name_for_model_and_method(recipe: Path, launched: list[list[str]]) -> None:
    overrides = (f"data.train={recipe.parent / 'rows.jsonl'}", "train.output_dir=runs/d2e-mini")
    words = ("--model", "smollm2-135m-mini", "--method", "d2e", *overrides)
    assert d2e("train", *words, "--launch", "ddp", "--processes", "2") == 0
    assert launched[0][-3:] == ["smollm2-135m-mini/d2e", *overrides]


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
    for words in chain(*steps(Path("runs/quickstart"), seed)):
        command, rest = command_of(words)
        command.make_context(str(command.name), rest)


def test_all_ways_train_from_the_same_start_into_folders_of_their_own_on_data_that_are_built() -> None:
    words = list(chain(*steps(Path("out"))))
    trainings = [line for line in words if line[0] == "train"]
    assert [line[line.index("--method") + 1] for line in trainings] == ["sft-lora", "sft-lora", "d2e-lora"]
    assert len({line[line.index("--model") + 1] for line in trainings}) == 1
    of = {key: [w.partition("=")[2] for line in trainings for w in line if w.startswith(f"{key}=")] for key in KEYS}
    assert of["train.output_dir"] == ["out/sft", "out/sft-swapped", "out/d2e-balanced"]
    assert of["data.train"] == [f"out/{data}/train.parquet" for data in ("habit", "habit-swapped", "habit")]
    built = {line[line.index("--out") + 1] for line in words if line[:2] == ["data", "build"]}
    assert {str(Path(file).parent) for file in of["data.train"]} == built

    scored = [line for line in words if line[0] == "eval"]
    assert {line[line.index("--bench") + 1] for line in scored} == {"out/habit"}
    for verb in ("compare", "report"):
        (line,) = (line for line in words if line[0] == verb)
        assert line[1:5] == ["out/sft", "out/d2e-balanced", "out/sft-swapped", "out/base"]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[str]]]:
    """The lines of a quickstart on one thread, none of which is run."""
    lines: list[list[str]] = []
    run, threads = cli.run, torch.get_num_threads()
    monkeypatch.setattr(cli, "run", lambda words: run(words) if words[0] == "quickstart" else lines.append(words))
    torch.set_num_threads(1)
    yield lines
    torch.set_num_threads(threads)


def test_steps_are_printed_and_run_in_their_order(tmp_path: Path, ran: list[list[str]]) -> None:
    assert output_of("quickstart", "--out", tmp_path).count("$ d2e ") == len(ran)
    assert ran == list(chain(*steps(tmp_path)))


def test_a_foreign_folder_and_an_earlier_run_are_refused(tmp_path: Path, ran: list[list[str]]) -> None:
    (tmp_path / "habit").mkdir()
    assert "--overwrite" in refusal_of("quickstart", "--out", tmp_path)
    assert "quickstart finished" in output_of("quickstart", "--out", tmp_path, "--overwrite")
    (tmp_path / "manifest.json").write_text("{}")
    assert "manifest.json, which no quickstart wrote" in refusal_of("quickstart", "--out", tmp_path, "--overwrite")


def test_a_second_process_prints_after_the_first_and_its_failure_ends_both(
    tmp_path: Path, ran: list[list[str]], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(2)
    run_side_by_side([["here"]], [["recipes", "explain", "d2e.alpha"]])
    printed = capfd.readouterr().out
    assert ran == [["here"]]
    assert printed.index("$ d2e here") < printed.index("$ d2e recipes explain d2e.alpha") < printed.index("default")
    with pytest.raises(UserError, match="the second process ended with status 1"):
        run_side_by_side([], [["eval", "none"], ["recipes", "schema"]])
    printed = capfd.readouterr().out
    assert printed.index("$ d2e eval none") < printed.index("d2e: error")
    assert "recipes schema" not in printed.partition("\n$")[2]
    os.mkfifo(tmp_path / "without-end")
    monkeypatch.setattr(cli, "run", None)  # fails here
    with pytest.raises(TypeError):
        run_side_by_side([["here"]], [["data", "stats", str(tmp_path / "without-end")]])
    assert torch.get_num_threads() == 2


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
