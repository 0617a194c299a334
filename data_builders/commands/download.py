"""`d2e data download`: download official files of datasets, for `--raw` and for the systems' benchmarks."""

import shutil
from pathlib import Path

import click

from d2e_sft.util.errors import UserError, did_you_mean
from d2e_sft.util.files import replacing
from data_builders.raw.files import fetch
from data_builders.sources import SOURCES


@click.command()
@click.argument("names", metavar="DATASET...", nargs=-1, required=True)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("data/raw"),
    show_default=True,
    help="Folder for the files, as OUT/DATASET/FILE.",
)
def download(names: tuple[str, ...], out: Path) -> None:
    """Download the official files of each DATASET, checked against the published checksums.

    `d2e data build --raw OUT` reads them, and `d2e eval --bench SYSTEM --data OUT/SYSTEM` those of a related system.

    Example: d2e data download crepe wiqa --out data/raw
    """
    for name in names:
        if name not in SOURCES:
            raise UserError(
                f"dataset {name!r}: unknown; expected some of {', '.join(SOURCES)}.{did_you_mean(name, SOURCES)}"
            )
    failures = []
    for source in (SOURCES[name] for name in names):
        if not source.official:
            click.echo(f"{source.name}: is generated and has no official files")
        for file in source.official:
            target = out / source.raw_folder / file.name
            try:
                cached = fetch(source.raw_folder, file)
            except UserError as error:
                failures.append(f"{target}: {error.message} ({error.remedy})")
                continue
            with replacing(target) as partial:
                shutil.copyfile(cached, partial)
            click.echo(f"{target}: {target.stat().st_size:,} bytes")
    if failures:
        raise UserError(
            "\n  ".join([f"{len(failures)} files could not be downloaded", *failures]),
            remedy="get them by hand as described above, and save them under these names",
        )
