"""`d2e push`: a run to the Hub."""

from __future__ import annotations

from pathlib import Path

import click

from d2e_sft.commands.export import DTYPES


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("name", metavar="OWNER/NAME")
@click.option("--private/--public", default=False, show_default=True, help="Who may see the repository made for it.")
@click.option("--merge", is_flag=True, help="Merge an adapter into its base model.")
@click.option("--dtype", type=click.Choice(DTYPES), help="Of the weights; default: as they are (merged: model.dtype).")
@click.option("--license", "licence", metavar="ID", help="Of the weights, for the card, as the Hub names it.")
@click.option("--revision", metavar="BRANCH", help="A branch, which is made where there is none.")
@click.option("--dry-run", is_flag=True, help="List the files and their sizes, and send nothing.")
def push(
    run: Path,
    name: str,
    private: bool,
    merge: bool,
    dtype: str | None,
    licence: str | None,
    revision: str | None,
    dry_run: bool,
) -> None:
    """Publish RUN as the model OWNER/NAME (or NAME, for your own account) on the Hub.

    RUN is a run folder, one of its checkpoints, or a folder that `d2e export` wrote. Sent are weights, tokenizer,
    model card, recipe, scores and custom_generate/generate.py, in one commit: all of them or none. After a failure
    the same command goes on and sends what is missing. The token is that of `hf auth login`, or $HF_TOKEN.

    Example: d2e push runs/d2e-mini my-account/d2e-mini --private --merge
    """
    from d2e_sft.hub.export import ExportOptions
    from d2e_sft.hub.push import push as send

    options = ExportOptions(merge=merge, dtype=dtype, licence=licence)
    sent = send(run, name, private=private, revision=revision, dry_run=dry_run, options=options)
    width = max(len(f"{size:,}") for size in sent.sizes.values())
    for file, size in sent.sizes.items():
        click.echo(f"{size:>{width},}  {file}")
    total = f"{len(sent.sizes)} files, {sum(sent.sizes.values()):,} bytes"
    if sent.url is None:
        click.echo(f"{total}; nothing was sent (--dry-run)")
    else:
        click.echo(f"pushed {total}\n{sent.url} ({'private' if sent.private else 'public'})")
