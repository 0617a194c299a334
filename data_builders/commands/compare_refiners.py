"""`d2e data compare-refiners`: which relevance scorer loses fewest answers."""

from __future__ import annotations

import platform
from pathlib import Path

import click

from d2e_sft import __version__
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import write_json
from d2e_sft.util.tables import text_table
from data_builders.build.options import BuildOptions
from data_builders.build.reading import read_datasets
from data_builders.raw.source import SPLITS
from data_builders.refine.comparison import DATASETS, SCORERS, Measurement, compare_scorers, usable


@click.command("compare-refiners")
@click.option("--raw", type=click.Path(path_type=Path), help="Folder with the raw files; else they are downloaded.")
@click.option("--scorers", default=",".join(SCORERS), show_default=True, help="Comma-separated.")
@click.option("--samples", type=click.IntRange(1), default=500, show_default=True, help="At most, of each dataset.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the draw of the samples.")
@click.option("--json", "target", type=click.Path(dir_okay=False, path_type=Path), help="Write the table as JSON.")
def compare_refiners(*, raw: Path | None, scorers: str, samples: int, seed: int, target: Path | None) -> None:
    """Compare relevance scorers on the samples of TimeQA, IfQA and ESTER whose answer stands in the context.

    For the same share of a context's words: how often is the whole answer still there?

    Example: d2e data compare-refiners --raw raw --scorers overlap,bm25
    """
    chosen = [name for name in SCORERS if name in {part.strip() for part in scorers.split(",")}]
    unknown = {part.strip() for part in scorers.split(",")} - set(SCORERS)
    if unknown or not chosen:
        raise UserError(f"--scorers: got {scorers!r}; expected some of {', '.join(SCORERS)}")
    reading = read_datasets(BuildOptions(DATASETS, raw=raw, seed=seed), SPLITS)
    for error in reading.failures.values():
        click.echo(f"warning: {error}", err=True)
    measured: list[Measurement] = []
    for name, dataset in reading.datasets.items():
        rows = [sample for split in dataset.splits.values() for sample in split.rows]
        drawn = usable(rows, samples, seed=seed)
        if drawn:
            measured += compare_scorers(name, drawn, chosen)
        else:
            click.echo(f"warning: {name}: no sample has its answer in a context of several sentences", err=True)
    if not measured:
        raise UserError(f"no usable sample in {', '.join(DATASETS)}; expected answers that stand in their contexts")
    click.echo(
        text_table(
            [
                ("dataset", "scorer", "query", "words asked", "answers kept", "words kept", "ms/sample", "n"),
                *(_line(item) for item in measured),
            ]
        )
    )
    if target:
        described = {
            "version": __version__,
            "python": platform.python_version(),
            "processor": platform.processor() or platform.machine(),
            "command": f"d2e data compare-refiners --scorers {scorers} --samples {samples} --seed {seed}",
            "rows": [item.to_json() for item in measured],
        }
        write_json(target, described)
        click.echo(f"wrote {target}")


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
