"""All commands: outputs that are special files, widths of the terminal, and how processes end."""

import csv
import locale
import logging
import os
import random
import signal
import socket
import sys
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from threading import Thread
from typing import Any

import datasets
import matplotlib as mpl
import numpy as np
import pytest
import torch
from transformers.utils import logging as transformers_logging

from d2e_sft import cli
from d2e_sft.data.sample import write_samples
from d2e_sft.util.terminal import WIDTH
from tests.command import d2e, output_of, verbs
from tests.eval.commands.test_score import save_answers as save_rows
from tests.eval.compare.rows import accuracy, save_result
from tests.eval.paper_runs import run
from tests.eval.systems.cases import CASES, save_answers, save_gold
from tests.eval.systems.files import save
from tests.eval.systems.wiqa_files import GRAPH, OTHER, QUESTIONS
from tests.factories import make_run, make_world, prediction, write_recipe
from tests.tiny import make_sample

# FILE.ending is the output; other capitals are files of the world.
_COMMANDS = [
    "recipes copy smollm2-135m/sft FILE.yaml",
    "data list --json FILE.json",
    "data check OWN --against BENCH --json FILE.json",
    "data show TRAIN --html FILE.html",
    "data stats TRAIN --json FILE.json",
    "data convert TRAIN FILE.jsonl",
    "data convert TRAIN --out FILE.jsonl",
    "recipes copy smollm2-135m/sft --out FILE.yaml",
    "data wiqa-questions --graphs GRAPHS --out FILE.jsonl",
    "score wiqa ANSWERS --gold GOLD --json FILE.json",
    "score wiqa ANSWERS --gold GOLD --latex FILE.tex",
    "score wiqa ANSWERS --gold GOLD --plot FILE.svg",
    "score wiqa --gold GOLD --template FILE.csv",
    "compare RUN OTHER --json FILE.json",
    "compare RUN OTHER --out FILE.md",
    "table RUN --out FILE.tex",
    "report RUN --out FILE.html",
    "predict MODEL TRAIN --max-new-tokens 2 --out FILE.csv",
    "inspect MODEL --bench BENCH --out FILE.html",
    "bench decode --model MODEL --prompts 200 --batches 1 --new-tokens 2 --json FILE.json",
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = make_world(tmp_path_factory.mktemp("world"), train=4, bench=4)
    places = {name: name.lower() for name in ("BENCH", "MODEL", "RUN", "OTHER")}
    for name in ("run", "other"):
        make_run(folder / name, [prediction(number, name == "run", dataset="tracie") for number in range(4)])
    write_samples([make_sample(70, context="The sun rose.", question="What rose?")], folder / "own.jsonl")
    save(folder / "graphs.jsonl", [GRAPH, OTHER])
    save(folder / "gold.jsonl", QUESTIONS)
    save_rows(folder / "answers.csv", 3)
    places |= {
        "TRAIN": "train.jsonl",
        "OWN": "own.jsonl",
        "GRAPHS": "graphs.jsonl",
        "GOLD": "gold.jsonl",
        "ANSWERS": "answers.csv",
    }
    return {name: folder / place for name, place in places.items()}


@pytest.mark.parametrize("command", _COMMANDS)
def test_an_output_that_is_no_file_stays_what_it_is(world: dict[str, Path], tmp_path: Path, command: str) -> None:
    def run(name: str) -> None:
        words = [word.replace("FILE", str(tmp_path / name)) for word in command.split()]
        output_of(*(world.get(word, word) for word in words))

    ending = command[command.index("FILE") + len("FILE") :].split(maxsplit=1)[0]
    pipe, link, device = (tmp_path / f"{name}{ending}" for name in ("pipe", "link", "device"))
    link.symlink_to(tmp_path / "target")
    device.symlink_to("/dev/null")
    os.mkfifo(pipe)
    content: list[bytes] = []
    reader = Thread(target=lambda: content.append(pipe.read_bytes()), daemon=True)
    reader.start()
    run("pipe")
    reader.join(10)
    assert content[0]
    assert pipe.is_fifo()
    run("link")
    assert link.is_symlink()
    assert (tmp_path / "target").read_bytes()
    run("device")
    assert device.is_symlink()
    assert Path("/dev/null").is_char_device()
    assert not list(tmp_path.glob("*.partial"))


ROOT = Path(__file__).resolve().parents[1]
LONG = "a-run-whose-name-is-longer-than-any-column-of-a-table-should-be"


def too_wide(text: str) -> list[str]:
    return [line for line in text.splitlines() if len(line) > WIDTH]


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch) -> None:
    """No width is given, as where a command's output is piped."""
    monkeypatch.delenv("COLUMNS")


def complaint(words: tuple[str, ...], *more: str | Path) -> str:
    """What a wrong call of a verb says, as the command line shows it."""
    with pytest.raises(SystemExit) as stop, redirect_stderr(StringIO()) as said:
        cli.main([*words, *map(str, more)])
    assert stop.value.code in (1, 2), words
    return said.getvalue()


@pytest.mark.usefixtures("piped")
def test_errors_of_every_verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An option that there is not, a file that is missing, and what the verb asks for left out."""
    monkeypatch.chdir(tmp_path)  # nothing is found there
    unknown, lacking = f"--{LONG}-{LONG}", tmp_path / LONG / LONG
    for path, command in verbs().items():
        said = complaint(path, unknown, lacking)
        assert "rror: " in said, path
        assert not [line for line in too_wide(said) if len(line.split()) > 1], said
        if any(parameter.required for parameter in command.params):
            said = complaint(path)
            assert "Error: Missing" in said, path
            assert not too_wide(said), said


@pytest.mark.usefixtures("piped")
def test_scores_of_every_system(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in CASES:
        system, *given = name.split()
        gold = save_gold(tmp_path, name)
        said = save_answers(tmp_path / f"{LONG}-{name}.csv", name, gold)
        assert d2e("score", system, said, "--gold", gold, *(part for one in given for part in ("--set", one))) == 0
        assert not too_wide(capsys.readouterr().out), name


@pytest.mark.usefixtures("piped")
def test_runs_with_long_names_are_compared_and_laid_out(tmp_path: Path) -> None:
    rows = [run(tmp_path / f"{LONG}-{number}") for number in range(3)]
    system = [save_result(tmp_path / f"{LONG}-s{n}", accuracy([1, 0, n, 1]), bench="boxes") for n in range(2)]
    for verb, runs in (("table", rows), ("compare", system), ("table", system)):
        printed = output_of(verb, *runs)
        assert printed
        assert not too_wide(printed.replace(str(tmp_path), "")), verb


RANDOM = {"random: torch", "random: NumPy", "random: Python"}


def state() -> dict[str, Any]:
    """What all code of a process shares."""
    return {
        "environment": dict(os.environ),
        "working folder": str(Path.cwd()),
        "module path": list(sys.path),
        "random: torch": torch.get_rng_state().tolist(),
        "random: NumPy": repr(np.random.get_state()),
        "random: Python": random.getstate(),
        "default dtype": torch.get_default_dtype(),
        "threads": torch.get_num_threads(),
        "gradients": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "products": torch.get_float32_matmul_precision(),
        "signals": [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)],
        "limits": (csv.field_size_limit(), sys.getrecursionlimit(), sys.get_int_max_str_digits()),
        "locale": locale.setlocale(locale.LC_ALL),
        "time-out": socket.getdefaulttimeout(),
        "hooks": (sys.excepthook, sys.displayhook),
        "figures": dict(mpl.rcParams),
        "NumPy's errors": np.geterr(),
        "root logger": (logging.getLogger().level, list(logging.getLogger().handlers)),
        "levels": (transformers_logging.get_verbosity(), datasets.logging.get_verbosity()),
        "progress": datasets.is_progress_bar_enabled(),
    }


@pytest.fixture(scope="module")
def world_process(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything once, as what a library sets at its first import is no command's doing."""
    folder = make_world(tmp_path_factory.mktemp("process"), train=6, bench=6, seed=3)
    write_recipe(folder, folder / "recipe", "train.max_steps=2")
    for name, command in commands(folder, "first").items():
        assert d2e(*command) == 0, name
    return folder


def commands(folder: Path, turn: str) -> dict[str, list[str | Path]]:
    """Commands that end well; a later one reads what an earlier one wrote."""
    run, out = folder / f"run-{turn}", folder / turn
    bench: list[str | Path] = ["--bench", folder / "bench"]
    return {
        "data build": ["data", "build", "--datasets", "boxes,habit", "--out", out / "data", "boxes.boxes=3"],
        "dry run": ["train", folder / "recipe.yaml", f"train.output_dir={run}", "--dry-run"],
        "train": ["train", folder / "recipe.yaml", f"train.output_dir={run}"],
        "eval": ["eval", run, *bench, "--max-new-tokens", "4"],
        "likelihood": ["eval", run, *bench, "--answer", "likelihood", "--out", out / "likelihood"],
        "report": ["report", run, "--out", out / "report.html"],
        "inspect": ["inspect", run, *bench, "--out", out / "inspect.html"],
        "export": ["export", run, out / "exported"],
        "doctor": ["doctor"],
    }


@pytest.mark.parametrize("name", commands(Path(), ""))
def test_a_command_leaves_the_process_as_it_found_it(world_process: Path, name: str) -> None:
    command = commands(world_process, "second")[name]
    before = state()
    assert d2e(*command) == 0
    after = state()
    # A training seeds them, as transformers' Trainer does; nothing else draws from them.
    differs = {what for what in before if before[what] != after[what]} - (RANDOM if name == "train" else set())
    assert not differs, {what: (before[what], after[what]) for what in differs - RANDOM}


def test_a_command_that_fails_does_too(world_process: Path) -> None:
    before = state()
    assert d2e("train", world_process / "recipe.yaml", f"train.output_dir={world_process / 'run-first'}") == 1
    assert d2e("eval", world_process / "nothing", "--bench", world_process / "bench") == 1
    assert state() == before
