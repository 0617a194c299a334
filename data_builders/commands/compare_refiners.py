"""`d2e data compare-refiners`: which relevance scorer loses fewest answers."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import get_args

import click

from d2e_sft import __version__
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import write_json
from d2e_sft.util.tables import text_table
from d2e_sft.util.terminal.folding import warn
from data_builders.build.options import BuildOptions
from data_builders.build.reading import read_datasets
from data_builders.raw.source import SPLITS
from data_builders.refine.comparison import DATASETS, SCORERS, Measurement, compare_scorers, usable
from data_builders.refine.scorers import Pooling


@click.command("compare-refiners")
@click.option("--raw", type=click.Path(path_type=Path), help="Folder with the raw files; else they are downloaded.")
@click.option("--scorers", default=",".join(SCORERS), show_default=True, help="Comma-separated.")
@click.option("--datasets", default=",".join(DATASETS), show_default=True, help="Comma-separated.")
@click.option("--model", help="Of embedding: a folder, a Hub name or builtin:…; else all-MiniLM-L6-v2.")
@click.option("--pooling", type=click.Choice(get_args(Pooling)), default="mean", show_default=True)
@click.option("--samples", type=click.IntRange(1), default=500, show_default=True, help="At most, of each dataset.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the draw of the samples.")
@click.option("--json", "target", type=click.Path(dir_okay=False, path_type=Path), help="Write the table as JSON.")
def compare_refiners(
    *,
    raw: Path | None,
    scorers: str,
    datasets: str,
    model: str | None,
    pooling: Pooling,
    samples: int,
    seed: int,
    target: Path | None,
) -> None:
    """Compare relevance scorers where words tell which sentences decide.

    These are the sentences of an answer, of an event told word for word, or of the latest step. For the same share of
    a context's words: how often are all of them still there?

    \b
    Examples:
      d2e data compare-refiners --raw raw --scorers overlap,bm25
      d2e data compare-refiners --raw raw --scorers overlap,embedding \\
        --model builtin:smollm2-135m-instruct
    """
    chosen = [name for name in SCORERS if name in {part.strip() for part in scorers.split(",")}]
    unknown = {part.strip() for part in scorers.split(",")} - set(SCORERS)
    if unknown or not chosen:
        raise UserError(f"--scorers: got {scorers!r}; expected some of {', '.join(SCORERS)}")
    names = [name for name in dict.fromkeys(part.strip() for part in datasets.split(",")) if name]
    reading = read_datasets(BuildOptions(names, raw=raw, seed=seed), SPLITS)
    for error in reading.failures.values():
        warn(str(error))
    measured: list[Measurement] = []
    for name, dataset in reading.datasets.items():
        rows = [sample for split in dataset.splits.values() for sample in split.rows]
        drawn = usable(rows, samples, seed=seed)
        if drawn:
            measured += compare_scorers(name, drawn, chosen, model=model, pooling=pooling)
        else:
            warn(f"{name}: no sample has what decides in a context of several sentences")
    if not measured:
        raise UserError(f"no usable sample in {', '.join(names)}; expected answers that stand in their contexts")
    click.echo(
        text_table(
            [
                ("dataset", "scorer", "query", "words asked", "all kept", "words kept", "ms/sample", "n"),
                *(_line(item) for item in measured),
            ]
        )
    )
    if target:
        described = {
            "version": __version__,
            "python": platform.python_version(),
            "processor": platform.processor() or platform.machine(),
            "command": _command(scorers, datasets, model, pooling, samples, seed),
            "rows": [item.to_json() for item in measured],
        }
        write_json(target, described)
        click.echo(f"wrote {target}")


def _command(scorers: str, datasets: str, model: str | None, pooling: Pooling, samples: int, seed: int) -> str:
    embedding = f" --model {model} --pooling {pooling}" if model else ""
    return (
        f"d2e data compare-refiners --scorers {scorers} --datasets {datasets}{embedding} --samples {samples} "
        f"--seed {seed}"
    )


def _line(item: Measurement) -> tuple[str, ...]:
    return (
        item.dataset,
        item.scorer,
        item.query,
        "" if item.share_of_words is None else f"{item.share_of_words:.0%}",
        f"{item.answers_kept:.1%} ± {item.half_width:.1%}",
        f"{item.words_kept:.0%}",
        f"{item.milliseconds:.1f}",
        f"{item.samples:,}",
    )
