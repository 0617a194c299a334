"""`d2e quickstart`: the whole flow on generated data, as the commands a user would type.

Each step is an ordinary `d2e` command line, printed before it runs, so that any of them can be repeated or changed.
"""

from __future__ import annotations

import shlex
import time
from pathlib import Path

import click

# Run → method.
_RUNS = {"sft": "sft", "d2e": "full"}
# Chosen so that the untrained model is clearly below the trained ones and none is at 0 or 100 %.
_WORLD = ("boxes.boxes=3", "boxes.max_objects=2", "boxes.expected_objects=1", "boxes.operations=3")
_DRAW = ("boxes.train_samples=256", "boxes.test_samples=100", "boxes.changed_share=0.6")


def steps(folder: Path) -> list[list[str]]:
    """The command lines of the quickstart, in order, for a run folder."""
    from d2e_sft.model.loading import BUILTIN

    bench = str(folder / "boxes")
    runs = [str(folder / name) for name in ("base", *_RUNS)]
    train = [
        [
            *("train", "--model", "smollm2-135m-quickstart", "--method", method),
            f"data.train={bench}/train.parquet",
            f"train.output_dir={folder / name}",
            "--overwrite",
        ]
        for name, method in _RUNS.items()
    ]
    return [
        ["data", "build", "--datasets", "boxes", "--out", bench, *_WORLD, *_DRAW],
        *train,
        ["eval", BUILTIN, "--bench", bench, "--out", runs[0], "--max-new-tokens", "16", "--overwrite"],
        *(["eval", run, "--bench", bench] for run in runs[1:]),
        ["compare", *runs],
        ["report", *runs, "--out", str(folder / "report.html"), "--title", "D²E-SFT quickstart: tracking boxes"],
    ]


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs/quickstart"), show_default=True)
def quickstart(out: Path) -> None:
    """Train SmolLM2-135M by SFT and by D²E-SFT on generated data, and compare both with the base model.

    Needs no GPU, and no network where the package that carries the model is installed. Every step is printed as the
    command that repeats it.

    Example: d2e quickstart --out runs/quickstart
    """
    from d2e_sft.cli import run

    started = time.perf_counter()
    for arguments in steps(out):
        click.echo(f"\n$ d2e {shlex.join(arguments)}")
        run(arguments)
    minutes = (time.perf_counter() - started) / 60
    click.echo(f"\nquickstart finished in {minutes:.1f} minutes; open {out / 'report.html'}")
