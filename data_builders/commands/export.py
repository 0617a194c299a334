"""`d2e data export`: pairs of prompt and answer for other trainers."""

from pathlib import Path
from typing import Any

import click

from d2e_sft.config.objectives import VIEWS
from d2e_sft.config.options import comma_list
from d2e_sft.util.terminal import filled
from data_builders.build.export import FORMATS, ExportFormat
from data_builders.build.export import export as export_pairs
from data_builders.commands.shared import PATH, print_table, some_of


@click.command()
@click.argument("data", metavar="DIR", type=PATH)
@click.option(
    "--format",
    "fmt",
    type=click.Choice(FORMATS),
    required=True,
    help="trl: columns prompt and completion, and where samples have a rejected answer a file with prompt, chosen and "
    "rejected. llamafactory: messages, with dataset_info.json. axolotl: messages, "
    "with a mark on each turn that is trained on. jsonl: prompt, answer, weight, loss and accepted answers.",
)
@comma_list(
    "--views",
    default="original",
    show_default=True,
    read=some_of(VIEWS),
    help=f"Comma-separated, of: {', '.join(VIEWS)}.",
)
@click.option("--out", type=PATH, help="Folder for the results. Default: DIR-FORMAT.")
@click.option("--prompt-set", default="default", show_default=True, help="Wording of the prompts.")
@click.option("--overwrite", is_flag=True, help="Replace an earlier export.")
def export(*, data: Path, out: Path | None, fmt: ExportFormat, **options: Any) -> None:
    """Write the rows in DIR as pairs of prompt and answer, one file for each split and view.

    DIR is an output of `d2e data build`, or a .parquet or .jsonl file of EventSample rows. The views are those that
    training uses. A row that the format cannot hold is an error. `datasets.load_dataset` reads the result, and
    `d2e data push` publishes it.

    \b
    Examples:
      d2e data export data/piper-10k --format trl --views original,imagined,refined
      d2e data export data/piper-10k --format llamafactory --out LLaMA-Factory/data/piper
    """
    place = data.absolute()
    target = out or place.with_name(f"{place.name if data.is_dir() else place.stem}-{fmt}")
    rows, left_out = export_pairs(data, target, fmt, **options)
    print_table(("file", "rows"), list(rows.items()))
    if left_out:
        answers = f"the rejected answers of {left_out:,} samples, which rows of {fmt} do not have"
        click.echo(filled(f"left out: {answers}; --format trl and jsonl write them"))
    click.echo(f"wrote {target}; its README.md says how to use it")
