"""`d2e data push`: publish a build on the Hub."""

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
    help="Output of `d2e data build`.",
)
@click.option("--private/--public", default=True, show_default=True, help="Visibility of a new repository.")
@click.option(
    "--allow-restricted",
    is_flag=True,
    help="Publish rows of sources that do not allow it, on your own responsibility.",
)
def push(name: str, folder: Path, private: bool, allow_restricted: bool) -> None:
    """Publish a build as the dataset NAME (OWNER/NAME, or NAME alone for your own account) on the Hub.

    The Parquet files, which must match the manifest, the manifest and the card are sent. The token is that of
    `hf auth login`, or $HF_TOKEN. Rows whose licence forbids publication can only go to a private repository.

    Example: d2e data push my-account/piper-10k --data data/piper-10k
    """
    # Imported here, since the Hub's client takes a second.
    from data_builders.build.publish import publish

    sent = publish(folder, name, private=private, allow_restricted=allow_restricted)
    for dataset, reason in sent.restricted.items():
        consequence = "keep the repository private" if sent.private else "published anyway (--allow-restricted)"
        warn(f"{dataset}: {reason}; {consequence}")
    click.echo(f"pushed {', '.join(sent.files)}")
    click.echo(f"{sent.url} ({'private' if sent.private else 'public'})")
