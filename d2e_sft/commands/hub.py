"""`d2e export`, `d2e push`, `d2e pull`: runs as plain checkpoint folders, and on the Hub."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from d2e_sft.config.options import out_argument


def _export_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that `export` and `push` share."""
    for option in (
        click.option("--license", "licence", metavar="ID", help="Licence of the weights, as the Hub names it."),
        click.option(
            "--dtype",
            type=click.Choice(("float32", "bfloat16", "float16")),
            help="Dtype of the weights; default: unchanged (merged: model.dtype).",
        ),
        click.option("--merge", is_flag=True, help="Merge an adapter into its base model."),
    ):
        command = option(command)
    return command


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@out_argument()
@_export_options
@click.option("--overwrite", is_flag=True, help="Replace an earlier export in OUT, and the evaluations in it.")
def export(run: Path, out: Path, overwrite: bool, **options: Any) -> None:
    """Write RUN as the new folder OUT, which works without d2e-sft.

    RUN is a run folder or one of its checkpoints. OUT contains safetensors weights, tokenizer, generation config, a
    model card, the recipe, the scores, and custom_generate/generate.py, with which transformers decodes debiased. It
    appears when it is complete.

    --merge writes a LoRA adapter and its base as one model, and checks that its logits equal those of base and
    adapter: to 1e-3 of the largest logit in float32, 1e-2 in float16, 5e-2 in bfloat16.

    Example: d2e export runs/d2e-mini exports/d2e-mini --merge --dtype bfloat16
    """
    from d2e_sft.hub.card import portable_adapter
    from d2e_sft.hub.export import ExportOptions
    from d2e_sft.hub.export import export as write
    from d2e_sft.model.storage.folder import base_of_adapter

    files = write(run, out, ExportOptions(**options), overwrite=overwrite)
    click.echo(f"exported {len(files)} files: {out}")
    base = base_of_adapter(out)
    if base is not None and not portable_adapter(out):
        click.echo(f"warning: its base {base!r} has no name on the Hub; for use elsewhere, add --merge", err=True)


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("name", metavar="OWNER/NAME")
@click.option("--private/--public", default=True, show_default=True, help="Visibility of a new repository.")
@_export_options
@click.option("--revision", metavar="BRANCH", help="A branch, created if missing.")
@click.option("--dry-run", is_flag=True, help="List the files and their sizes without sending them.")
def push(run: Path, name: str, private: bool, revision: str | None, dry_run: bool, **options: Any) -> None:
    """Publish RUN as the model OWNER/NAME (or NAME, for your own account) on the Hub.

    RUN is a run folder, one of its checkpoints, or a folder from `d2e export`. One commit sends weights, tokenizer,
    model card, recipe, scores and custom_generate/generate.py: all or nothing. After a failure, the same command
    sends what is missing. The token is that of `hf auth login`, or $HF_TOKEN.

    Example: d2e push runs/d2e-mini my-account/d2e-mini --merge
    """
    from d2e_sft.hub.export import ExportOptions
    from d2e_sft.hub.export import push as send

    sent = send(run, name, private=private, revision=revision, dry_run=dry_run, options=ExportOptions(**options))
    width = max(len(f"{size:,}") for size in sent.sizes.values())
    for file, size in sent.sizes.items():
        click.echo(f"{size:>{width},}  {file}")
    total = f"{len(sent.sizes)} files, {sum(sent.sizes.values()):,} bytes"
    if sent.url is None:
        click.echo(f"{total}; nothing was sent (--dry-run)")
    else:
        click.echo(f"pushed {total}\n{sent.url} ({'private' if sent.private else 'public'})")


@click.command()
@click.argument("name", metavar="OWNER/NAME")
@out_argument()
@click.option("--revision", help="A branch, a tag or a commit; default: the main branch.")
@click.option("--overwrite", is_flag=True, help="Replace a model in OUT, and the evaluations in it; never a run.")
def pull(name: str, out: Path, revision: str | None, overwrite: bool) -> None:
    """Download the model OWNER/NAME from the Hub as the new folder OUT.

    OUT appears when it is complete. After a failure, the same command resumes from OUT.partial. A model from
    `d2e push` can be evaluated and served like a run.

    Example: d2e pull my-account/d2e-mini models/d2e-mini
    """
    from d2e_sft.hub.client import download

    files = download(name, out, revision=revision, overwrite=overwrite)
    click.echo(f"pulled {len(files)} files: {out}")
