"""A run, or an export of one, as a model repository of the Hub."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from d2e_sft.hub.card import CARD_NAME, PLACEHOLDER, portable_adapter
from d2e_sft.hub.client import check_name, commit, full_name, writing_api
from d2e_sft.hub.export import AS_TRAINED, ExportOptions, export, exported_files
from d2e_sft.hub.results import SCORES_FILE, read_scores
from d2e_sft.model.storage.folder import base_of_adapter, check_model_files
from d2e_sft.util.errors import UserError

# Deleted if not pushed again: an old adapter would be loaded with new full weights.
_REPLACED = (
    *("*.safetensors", "*.safetensors.index.json", "adapter_config.json", "config.json", "generation_config.json"),
    *("eval/*", "custom_generate/*"),
)


@dataclass(frozen=True)
class Pushed:
    """What was sent, or would be."""

    sizes: dict[str, int]  # path in the repository → bytes
    url: str | None = None  # None after a dry run
    private: bool | None = None  # whether the repository is private


def push(
    run: Path,
    name: str,
    *,
    private: bool = True,
    revision: str | None = None,
    dry_run: bool = False,
    options: ExportOptions = AS_TRAINED,
) -> Pushed:
    """Export a run and commit it to a model repository, which is created if missing.

    `run` may also be a checkpoint, or an export, which is sent unchanged. A missing `revision` is created. `dry_run`
    only lists what would be sent, and needs neither token nor network. Raises UserError without a run or token, if an
    option is unsupported, nobody else could use the adapter, or the Hub refuses.
    """
    check_name(name)
    base = None if options.merge else base_of_adapter(run)
    if base is not None and not portable_adapter(run):
        raise UserError(
            f"{run}: its adapter belongs to {base!r}, which others cannot load from the Hub",
            remedy="add --merge, or train on a base model that has a name on the Hub",
        )
    # Before an export, which may take long.
    api = None if dry_run else writing_api()
    repo = name if api is None else full_name(api, name)
    with _exported(run, options) as folder:
        files = exported_files(folder)
        assert files is not None
        card = (folder / CARD_NAME).read_text(encoding="utf-8").replace(PLACEHOLDER, repo).encode()
        content: dict[str, Path | bytes] = {**{file: folder / file for file in files}, CARD_NAME: card}
        sizes = {file: len(card) if file == CARD_NAME else (folder / file).stat().st_size for file in files}
        if api is None:
            return Pushed(sizes)
        message = f"d2e-sft: {run.resolve().name}"
        url, is_private = commit(
            api, repo, "model", content, message, private=private, revision=revision, replaced=_REPLACED
        )
        return Pushed(sizes, url, is_private)


@contextmanager
def _exported(run: Path, options: ExportOptions) -> Iterator[Path]:
    if exported_files(run) is not None:
        if options != AS_TRAINED:
            raise UserError(
                f"{run}: is an export already; --merge, --dtype and --license are for a run",
                remedy="export the run again with these options, or push without them",
            )
        from d2e_sft.model.finite import refuse_non_finite_files  # imports torch

        check_model_files(run)
        refuse_non_finite_files(run, str(run))
        for scores in run.glob(f"eval/*/{SCORES_FILE}"):
            read_scores(scores)
        yield run
        return
    # Next to the run, so unchanged weights can be hard links.
    run = run.absolute()
    place_for = run.parent if os.access(run.parent, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix=f".{run.name}.push-", dir=place_for) as place:
        folder = Path(place) / "export"
        export(run, folder, replace(options, link=True))
        yield folder
