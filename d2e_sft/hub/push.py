"""A run, or what `d2e export` made of one, as a model repository of the Hub."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from d2e_sft.hub.card import CARD_NAME, portable_adapter
from d2e_sft.hub.client import check_name, commit, full_name, writing_api
from d2e_sft.hub.export import export, exported_files
from d2e_sft.hub.usage import PLACEHOLDER
from d2e_sft.hub.weights import AS_TRAINED, ExportOptions, base_of_adapter, is_adapter
from d2e_sft.util.errors import UserError

# What an earlier push may have left and this one may not have: an old adapter would be loaded with new full weights.
_REPLACED = (
    "*.safetensors",
    "*.safetensors.index.json",
    "adapter_config.json",
    "config.json",
    "generation_config.json",
    "eval/*",
    "custom_generate/*",
)


@dataclass(frozen=True)
class Pushed:
    """What was sent, or would be.

    Attributes:
        sizes: path in the repository → bytes.
        url: of the repository; None where nothing was sent.
        private: whether the repository is.
    """

    sizes: dict[str, int]
    url: str | None = None
    private: bool | None = None


def push(
    run: Path,
    name: str,
    *,
    private: bool = True,
    revision: str | None = None,
    dry_run: bool = False,
    options: ExportOptions = AS_TRAINED,
) -> Pushed:
    """Export a run and commit it to a model repository, which is made where there is none.

    Args:
        run: a run folder, one of its checkpoints, or a folder that `d2e export` wrote, which is sent as it is.
        name: `owner/name`, or `name` for the token's own account.
        private: whether the repository must be private.
        revision: a branch; made where there is none.
        dry_run: find out what would be sent, and send nothing; needs neither token nor network.
        options: of the export.

    Raises:
        UserError: no run, an option that does not fit, an adapter nobody else could use, no token, or the Hub's no.
    """
    check_name(name)
    # Before an export, which may take long.
    api = None if dry_run else writing_api()
    repo = name if api is None else full_name(api, name)
    with _folder(run, options) as folder:
        files = exported_files(folder)
        assert files is not None
        if is_adapter(folder) and not portable_adapter(folder):
            raise UserError(
                f"{run}: its adapter belongs to {base_of_adapter(folder)!r}, which others cannot load from the Hub",
                remedy="add --merge, or train on a base model that has a name on the Hub",
            )
        card = (folder / CARD_NAME).read_text(encoding="utf-8").replace(PLACEHOLDER, repo).encode()
        content: dict[str, Path | bytes] = {**{file: folder / file for file in files}, CARD_NAME: card}
        sizes = {file: len(card) if file == CARD_NAME else (folder / file).stat().st_size for file in files}
        if api is None:
            return Pushed(sizes)
        message = f"d2e-sft: {run.resolve().name}"
        url, is_private = commit(
            api, repo, content, message, repo_type="model", private=private, revision=revision, replaced=_REPLACED
        )
    return Pushed(sizes, url, is_private)


@contextmanager
def _folder(run: Path, options: ExportOptions) -> Iterator[Path]:
    if exported_files(run) is not None:
        if options.merge or options.dtype or options.licence:
            raise UserError(
                f"{run}: is an export already; --merge, --dtype and --license are for a run",
                remedy="export the run anew with these options, or push without them",
            )
        yield run
        return
    # Beside the run, where weights that stay as they are need no second copy on the disk.
    run = run.absolute()
    if not run.parent.is_dir():
        raise UserError(f"{run}: no such folder; expected a run", "name the folder that `d2e train` wrote")
    with tempfile.TemporaryDirectory(prefix=f".{run.name}.push-", dir=run.parent) as place:
        folder = Path(place) / "export"
        export(run, folder, replace(options, link=True))
        yield folder
