"""`d2e data boxes`: the Boxes task in its published file format."""

import json
from pathlib import Path

import click

from d2e_sft.config.options import out_argument
from d2e_sft.util.encrypted_zip import PASSWORD, write_encrypted
from d2e_sft.util.files import write_whole
from data_builders.boxes.source import VARIANTS, RowFormat, Variant, official_rows


@click.command()
@out_argument()
@click.option(
    "--variant", type=click.Choice(VARIANTS), default="base", show_default=True, help="What training leaves out."
)
@click.option(
    "--scenarios", type=click.IntRange(3, 10_000), default=2_200, show_default=True, help="Scenarios in all splits."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of every draw.")
@click.option(
    "--format",
    "row_format",
    type=click.Choice(["few_shot", "t5"]),
    default="few_shot",
    show_default=True,
    help="For prompting, or for T5.",
)
@click.option("--plain", is_flag=True, help="Write a folder of plain files; do not publish them.")
@click.option("--password", default=PASSWORD, show_default=True, help="Password of the archive.")
def boxes(
    out: Path, variant: Variant, scenarios: int, seed: int, row_format: RowFormat, plain: bool, password: str
) -> None:
    """Generate Boxes into OUT: train, dev and test in the published file format.

    OUT is a zip archive with a password, since the authors ask to keep such data out of training corpora. The splits
    share no signature of initial states. For rows to train on, use d2e data build --datasets boxes boxes.variant=….

    Example: d2e data boxes data/raw/boxes/base.zip --variant base
    """
    lines: dict[str, list[str]] = {}
    scenario_ids: dict[str, set[int]] = {}
    for split, row in official_rows(variant, scenarios=scenarios, seed=seed, row_format=row_format):
        lines.setdefault(f"{split}.jsonl", []).append(json.dumps(row, ensure_ascii=False))
        scenario_ids.setdefault(f"{split}.jsonl", set()).add(row["sample_id"])
    if plain:
        out.mkdir(parents=True, exist_ok=True)
        for name, rows in lines.items():
            write_whole(out / name, "".join(f"{row}\n" for row in rows))
    else:
        write_encrypted(out, lines, password)
    for name, rows in lines.items():
        click.echo(f"{name}: {len(scenario_ids[name]):,} scenarios, {len(rows):,} questions")
    click.echo(f"wrote {out}" + ("" if plain else f" (password {password})"))
