"""`d2e export`: a run as a plain checkpoint folder."""

from __future__ import annotations

from pathlib import Path

import click

DTYPES = ("float32", "bfloat16", "float16")


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--merge", is_flag=True, help="Merge an adapter into its base model.")
@click.option("--dtype", type=click.Choice(DTYPES), help="Of the weights; default: as they are (merged: model.dtype).")
@click.option("--license", "licence", metavar="ID", help="Of the weights, for the card, as the Hub names it.")
def export(run: Path, out: Path, merge: bool, dtype: str | None, licence: str | None) -> None:
    """Write RUN as the new folder OUT, which needs nothing of d2e-sft.

    RUN is a run folder or one of its checkpoints. OUT gets safetensors weights, tokenizer, generation config, a model
    card, the recipe, the scores, and custom_generate/generate.py, with which transformers decodes debiased. It
    appears when it is whole.

    Example: d2e export runs/d2e-mini exports/d2e-mini --merge --dtype bfloat16
    """
    from d2e_sft.hub.card import portable_adapter
    from d2e_sft.hub.export import ExportOptions
    from d2e_sft.hub.export import export as write
    from d2e_sft.hub.weights import base_of_adapter, is_adapter

    files = write(run, out, ExportOptions(merge=merge, dtype=dtype, licence=licence))
    click.echo(f"exported {len(files)} files: {out}")
    if is_adapter(out) and not portable_adapter(out):
        base = base_of_adapter(out)
        click.echo(f"warning: its base {base!r} has no name on the Hub; for use elsewhere, add --merge", err=True)
