"""Publish a build as a dataset repository on the Hub.

Only files that the manifest lists are sent, after everything was checked: the folder is a build, its files are those
of the manifest, and their sources allow it. Bad rows (`bad_rows.jsonl`) are never sent: they name paths of this
machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from d2e_sft.hub.client import Target, check_name, check_no_link, commit, writing_api
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import sha256_of
from data_builders.build.card import CARD_NAME, render_card
from data_builders.dataset.manifest import MANIFEST_NAME, read_manifest, restricted


@dataclass(frozen=True)
class Published:
    """A published build.

    Attributes:
        url: of the dataset's page.
        files: paths in the repository.
        private: whether the repository is private.
        restricted: dataset → why its rows must not be published.
    """

    url: str
    files: list[str]
    private: bool
    restricted: Mapping[str, str]


def publish(folder: Path, name: str, *, private: bool = True, allow_restricted: bool = False) -> Published:
    """Commit a build's files to a dataset repository on the Hub, and create it if needed.

    Args:
        folder: the output of `d2e data build`.
        name: `owner/name`, or `name` for the token's own account.
        private: whether the repository must be private.
        allow_restricted: publish even if a source does not allow it.

    Raises:
        UserError: the folder is not a build, files differ from the manifest or are links, a source forbids it, there
            is no token, or the Hub refuses.
    """
    check_name(name)
    manifest = read_manifest(folder)
    files = _checked_files(folder, manifest)
    closed = restricted(manifest)
    if closed and not private and not allow_restricted:
        reasons = "; ".join(f"{name} ({reason})" for name, reason in closed.items())
        raise UserError(
            f"{folder}: rows of {len(closed)} datasets must not be published: {reasons}",
            remedy="push it as --private, build it without them, or, where you may publish them, "
            "pass --allow-restricted",
        )
    api = writing_api()
    card = folder / CARD_NAME
    for path in (*files, card):
        check_no_link(path, folder)
    sent: dict[str, Path | bytes] = {path.name: path for path in files}
    sent[CARD_NAME] = card if card.is_file() else render_card(manifest).encode()
    what = manifest.get("suite") or ", ".join(manifest["datasets"])
    url, is_private = commit(api, Target(name, "dataset", private), sent, f"d2e-sft {manifest['version']}: {what}")
    return Published(url, list(sent), is_private, closed)


def _checked_files(folder: Path, manifest: Mapping[str, Any]) -> list[Path]:
    files = []
    for name, entry in manifest["outputs"].items():
        path = folder / name
        if path.suffix != ".parquet":
            continue
        if not path.is_file():
            raise UserError(f"{path}: no such file, but {MANIFEST_NAME} lists it", remedy="build the data again")
        if (found := sha256_of(path)) != entry["sha256"]:
            raise UserError(
                f"{path}: has sha256 {found}; expected {entry['sha256']}, as {MANIFEST_NAME} says",
                remedy="the file was changed after the build: build the data again",
            )
        files.append(path)
    return [*files, folder / MANIFEST_NAME]
