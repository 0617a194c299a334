"""`d2e data stats`: print statistics of data sets."""

from __future__ import annotations

from pathlib import Path

import click

from d2e_sft.config.recipe import ModelSection
from d2e_sft.util.files import write_json, write_whole
from data_builders.commands.shared import FILE, PATH
from data_builders.dataset.sample_sets import read_set


@click.command()
@click.argument("data", metavar="DATA...", nargs=-1, required=True, type=PATH)
@click.option("--html", metavar="FILE", type=FILE, help="Write a page with plots.")
@click.option("--json", "json_file", metavar="FILE", type=FILE, help="Write all numbers.")
@click.option(
    "--tokenizer",
    metavar="NAME",
    default=ModelSection.model_fields["name"].default,
    show_default=True,
    help="Model whose tokens are counted; `words` counts words and needs no model.",
)
@click.option("--prompt-set", default="default", show_default=True, help="Wording of the prompts.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the hypothesis-only baseline.")
def stats(
    data: tuple[Path, ...], html: Path | None, json_file: Path | None, tokenizer: str, prompt_set: str, seed: int
) -> None:
    """Print counts by dataset, relation and format, prompt lengths, nli labels and what the refiner keeps.

    DATA are .parquet or .jsonl files of EventSample rows, or folders of `d2e data build`. Lengths are those of the
    prompts of the three views. For nli data, "hypothesis only" is the accuracy of a classifier without the context.
    Rows with the same premise are never in both its training and its test part. It needs scikit-learn, and is left out
    without.

    Example: d2e data stats data/piper-10k --html piper-10k.html
    """
    from data_builders.quality.stats import compute_stats, render_stats, stats_tables

    sets = [read_set(path) for path in data]
    numbers = compute_stats(sets, tokenizer=tokenizer, prompt_set=prompt_set, seed=seed)
    for table in (table for tables in stats_tables(numbers).values() for table in tables):
        click.echo(table.terminal() + "\n")
    if json_file:
        write_json(json_file, numbers)
        click.echo(f"wrote {json_file}")
    if html:
        write_whole(html, render_stats(numbers))
        click.echo(f"wrote {html}")
