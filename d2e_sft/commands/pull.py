"""`d2e pull`: a model repository of the Hub as a folder."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("name", metavar="OWNER/NAME")
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--revision", help="A branch, a tag or a commit; default: the main branch.")
def pull(name: str, out: Path, revision: str | None) -> None:
    """Download the model OWNER/NAME from the Hub as the new folder OUT.

    OUT appears when all of it is there. After a failure the same command goes on with what has arrived, which is kept
    in OUT.partial. A model that `d2e push` published can be evaluated and served like a run.

    Example: d2e pull my-account/d2e-mini models/d2e-mini
    """
    from d2e_sft.hub.client import download

    files = download(name, out, revision=revision)
    click.echo(f"pulled {len(files)} files: {out}")
