"""`d2e data convert`: check rows and write them in another format."""

from pathlib import Path

import click

from d2e_sft.config.options import out_argument
from d2e_sft.data.sample import BadRow, check_ending, read_samples, write_bad_rows, write_samples
from data_builders.commands.shared import PATH


@click.command()
@click.argument("source", metavar="IN", type=PATH)
@out_argument("target")
@click.option("--skip-bad", is_flag=True, help="Put bad rows aside in OUT.bad.jsonl and count them.")
def convert(source: Path, target: Path, skip_bad: bool) -> None:
    """Check EventSample rows in IN and write them to OUT; each is .parquet or .jsonl.

    Example: d2e data convert own.jsonl own.parquet --skip-bad
    """
    check_ending(target)
    bad_rows: list[BadRow] = []
    samples = read_samples(source, bad_rows=bad_rows if skip_bad else None)
    write_samples(samples, target)
    click.echo(f"{target}: {len(samples):,} rows")
    aside = target.with_name(target.name + ".bad.jsonl")
    if skip_bad:
        write_bad_rows(bad_rows, aside)
    if bad_rows:
        click.echo(f"{aside}: {len(bad_rows):,} bad rows put aside")
