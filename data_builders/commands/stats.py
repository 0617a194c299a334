"""`d2e data stats`: print statistics of data sets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from d2e_sft.config.recipe import ModelSection
from d2e_sft.util.files import write_json
from d2e_sft.util.table import percent
from data_builders.commands.shared import FILE, PATH, print_refinement, print_table
from data_builders.dataset.sample_sets import read_set

if TYPE_CHECKING:
    from d2e_sft.data.views import View
    from data_builders.quality.stats import GroupStats, Stats


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
    prompts of the three views. For nli data, "hypothesis alone" is the accuracy of a classifier without the context.
    Rows with the same premise are never in both its training and its test part. It needs scikit-learn, and is left out
    without.

    Example: d2e data stats data/piper-10k --html piper-10k.html
    """
    # Imported here, since transformers takes seconds.
    from data_builders.quality.stats import compute_stats

    found = compute_stats([read_set(path) for path in data], tokenizer=tokenizer, prompt_set=prompt_set, seed=seed)
    _print(found)
    if json_file:
        write_json(json_file, found.to_json())
        click.echo(f"wrote {json_file}")
    if html:
        from data_builders.quality.stats_page import write_page

        write_page(found, html)
        click.echo(f"wrote {html}")


def _print(found: Stats) -> None:
    several = len({group.group.data for group in found.groups}) > 1

    def name(group: GroupStats) -> tuple[str, ...]:
        return (*([group.group.data] if several else []), group.group.dataset, group.group.split)

    head = (*(["data"] if several else []), "dataset", "split")
    counts = [(*name(group), *kind, rows) for group in found.groups for kind, rows in group.counts.items()]
    total = (*([""] * len(head)), "", "all", found.rows)
    print_table((*head, "relation", "format", "rows"), [*counts, total])
    lengths = [
        (*name(group), view, one.n, *(f"{words:,.0f}" for words in (one.mean, one.median, one.p95)), one.longest)
        for group in found.groups
        for view, one in group.lengths.items()
    ]
    print_table((*head, "view", "n", f"mean {found.unit}", "median", "95 %", "longest"), lengths)
    print_refinement(head, [(name(group), group.rows, group.refinement) for group in found.groups])
    if nli := [group for group in found.groups if group.context_free]:
        header = (*head, "n", "contexts", "positive", "majority label")
        if found.left_out:
            print_table(header, [(*name(g), *_nli_cells(g)[:-1]) for g in nli])
            click.echo(found.left_out)
            return
        print_table((*header, "hypothesis alone"), [(*name(g), *_nli_cells(g)) for g in nli])
        click.echo("hypothesis alone: accuracy of a classifier without the context, 5-fold by context")
        views: tuple[View, ...] = ("original", "refined")
        cells = [(*name(g), *(_accuracy(g.by_places.get(view)) for view in views)) for g in nli]
        print_table((*head, *(f"places in the {view} context" for view in views)), cells)
        click.echo("places: accuracy of a classifier that also sees the third of the context in which each word is")


def _accuracy(found: float | None) -> str:
    return "" if found is None else f"{percent(found)} %"


def _nli_cells(group: GroupStats) -> tuple[str, ...]:
    alone = group.context_free
    assert alone is not None
    accuracy = "too few rows"
    if alone.accuracy is not None:
        accuracy = f"{percent(alone.accuracy)} % ± {percent(alone.standard_error)} %"
    positive = f"{group.labels['positive']:,}"
    return (f"{alone.n:,}", f"{alone.contexts:,}", positive, f"{percent(alone.majority_share)} %", accuracy)
