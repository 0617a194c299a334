"""`d2e data push`: a build to the Hub."""

from __future__ import annotations

from pathlib import Path

import click

from d2e_sft.util.terminal import warn


@click.command()
@click.argument("name")
@click.option(
    "--data",
    "folder",
    metavar="FOLDER",
    required=True,
    type=click.Path(path_type=Path),
    help="What `d2e data build` wrote.",
)
@click.option(
    "--private/--public", default=True, show_default=True, help="Who may see the repository that is made for it."
)
@click.option(
    "--allow-restricted",
    is_flag=True,
    help="Publish rows of sources that do not allow it; the responsibility is yours.",
)
def push(name: str, folder: Path, private: bool, allow_restricted: bool) -> None:
    """Publish a build as the dataset NAME (OWNER/NAME, or NAME alone for your own account) on the Hub.

    Sent are the Parquet files, which must be the ones that the manifest lists, the manifest and the card. The token
    is that of `hf auth login`, or $HF_TOKEN. Rows of sources whose licence does not allow it go to a private
    repository only.

    Example: d2e data push my-account/piper-10k --data data/piper-10k
    """
    from data_builders.build.publish import (
        publish,  # the Hub's client takes a second, which `--help` need not wait for
    )

    sent = publish(folder, name, private=private, allow_restricted=allow_restricted)
    for dataset, reason in sent.restricted.items():
        consequence = "keep the repository private" if sent.private else "published all the same (--allow-restricted)"
        warn(f"{dataset}: {reason}; {consequence}")
    click.echo(f"pushed {', '.join(sent.files)}")
    click.echo(f"{sent.url} ({'private' if sent.private else 'public'})")
