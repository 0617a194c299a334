"""`d2e data push`: publish a build, or an export of one, on the Hub."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from d2e_sft.data.built import MANIFEST, read_manifest
from d2e_sft.data.sample import BAD_ROWS_FILE
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import sha256_of
from d2e_sft.util.terminal import warn
from data_builders.build.card import CARD_NAME, render_card
from data_builders.commands.shared import PATH
from data_builders.dataset import EXPORT, restricted


@click.command()
@click.argument("name")
@click.option(
    "--data", "folder", metavar="FOLDER", required=True, type=PATH, help="Output of `d2e data build` or `export`."
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
    from d2e_sft.hub.client import check_name, check_no_link, commit, writing_api

    check_name(name)
    manifest = read_manifest(folder)
    # Bad rows are never sent: they name paths of this machine.
    sent: dict[str, Path | bytes] = {file: folder / file for file in _checked_files(folder, manifest)}
    closed = restricted(manifest)
    if closed and not private and not allow_restricted:
        reasons = "; ".join(f"{name} ({reason})" for name, reason in closed.items())
        raise UserError(
            f"{folder}: rows of {len(closed)} datasets must not be published: {reasons}",
            remedy="push it as --private, build it without them, or, where you may publish them, "
            "pass --allow-restricted",
        )
    api = writing_api()
    for file in (*sent, CARD_NAME):
        check_no_link(folder / file, folder)
    card = folder / CARD_NAME
    if EXPORT in manifest and not card.is_file():
        raise UserError(f"{card}: no such file; expected the card of the export", "export the data again")
    sent[CARD_NAME] = card if card.is_file() else render_card(manifest).encode()
    title = manifest.get("suite") or ", ".join(manifest["datasets"])
    message = f"d2e-sft {manifest['version']}: {title}"
    url, is_private = commit(api, name, "dataset", sent, message, private=private)
    consequence = "keep the repository private" if is_private else "published anyway (--allow-restricted)"
    for dataset, reason in closed.items():
        warn(f"{dataset}: {reason}; {consequence}")
    click.echo(f"pushed {', '.join(sent)}")
    click.echo(f"{url} ({'private' if is_private else 'public'})")


def _checked_files(folder: Path, manifest: Mapping[str, Any]) -> list[str]:
    """Return the files of rows and the manifest; UserError if a file differs from the manifest."""
    files = [name for name in manifest["outputs"] if name != BAD_ROWS_FILE]
    for path in (folder / name for name in files):
        if not path.is_file():
            raise UserError(f"{path}: no such file, but {MANIFEST} lists it", remedy="build the data again")
        expected = manifest["outputs"][path.name]["sha256"]
        if (digest := sha256_of(path)) != expected:
            raise UserError(
                f"{path}: has sha256 {digest}; expected {expected}, as {MANIFEST} says",
                remedy="the file was changed after the build: build the data again",
            )
    return [*files, MANIFEST]
