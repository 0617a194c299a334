"""Write a finished build, an export of one, or its rows again with other fields: all files at once, or none.

Files are written to a temporary folder and moved at the end, the manifest last. So a build that fails or is killed
leaves an earlier one intact. The next build removes the temporary folders of killed ones.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from d2e_sft.config.objectives import VIEWS
from d2e_sft.data.built import MANIFEST, read_manifest, warn_if_changed
from d2e_sft.data.sample import (
    BAD_ROWS_FILE,
    BadRow,
    EventSample,
    Split,
    check_ending,
    check_readable,
    read_samples,
    write_bad_rows,
    write_samples,
)
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import sha256_of, write_json
from d2e_sft.util.locks import file_lock, temporary_folder
from d2e_sft.util.paths import refuse_no_place
from data_builders.build.card import CARD_NAME, render_card
from data_builders.dataset import describe_outputs, files_of, is_ours, source_of
from data_builders.raw.source import SPLITS

_ROWS = (*(f"{split}.parquet" for split in SPLITS), BAD_ROWS_FILE)
DATASET_INFO = "dataset_info.json"
_PAIRS = tuple(f"{split}-{view}{kind}.jsonl" for split in SPLITS for view in VIEWS for kind in ("", "-preference"))
EXPORTED = (*_PAIRS, DATASET_INFO)
_FILES = (*_ROWS, MANIFEST, CARD_NAME)
_PATIENCE = 60.0  # seconds for another process to move its files


def check_early(out: Path, check: Callable[[], None]) -> None:
    """Raise the UserError of `check`, before any work, unless another process is just moving its files."""
    try:
        check()
    except UserError:
        with suppress(OSError), file_lock(out, "another build or export", "wait for its end", patience=_PATIENCE):
            pass  # it has ended, or there was none
        check()


def check_target(out: Path, *, overwrite: bool) -> None:
    """Raise UserError if `out` cannot be written, or has foreign files or a build to keep."""
    remedy = "name another folder with --out"
    refuse_no_place(out, str(out), "the results", remedy)
    taken = [name for name in _FILES if (out / name).exists()]
    if taken and not is_ours(out):
        raise UserError(
            f"{out}: contains {', '.join(taken)}, which no build of this project wrote and this one would overwrite",
            remedy=f"{remedy}, or move the files away",
        )
    if taken and not overwrite:
        raise UserError(f"{out}: already contains a build", f"{remedy}, or add --overwrite to replace it")


def write_build(
    out: Path,
    rows: Mapping[Split, Sequence[EventSample]],
    bad: Sequence[BadRow],
    description: Mapping[str, Any],
    *,
    overwrite: bool,
) -> list[Path]:
    """Write `<split>.parquet` for each split with rows, `bad_rows.jsonl`, and what `write_outputs` writes."""

    def fill(staging: Path) -> None:
        for split in filter(rows.get, SPLITS):
            write_samples(rows[split], staging / f"{split}.parquet")
        if bad:
            write_bad_rows(bad, staging / BAD_ROWS_FILE)

    check = partial(check_target, out, overwrite=overwrite)
    return write_outputs(out, fill, description, render_card, _ROWS, check)


def write_outputs(
    out: Path,
    fill: Callable[[Path], None],
    description: Mapping[str, Any],
    card: Callable[[Mapping[str, Any]], str],
    earlier: Iterable[str],
    check: Callable[[], None],
) -> list[Path]:
    """Write into `out` the files that `fill` puts into a folder, a manifest and a card; return them in this order.

    Args:
        description: The manifest without its `outputs`.
        earlier: Names of outputs that an earlier result may have; they are removed.
        check: Raises UserError if `out` may not be written. It is asked again, since another process may have
            written there in the meantime; only one at a time moves its files.
    """
    try:
        with temporary_folder(out, ".build-", _is_leftover) as staging:
            fill(staging)
            outputs = sorted(staging.iterdir())
            described = {**description, "outputs": describe_outputs(outputs)}
            write_json(staging / MANIFEST, described)
            (staging / CARD_NAME).write_text(card(described), encoding="utf-8")
            names = [path.name for path in outputs]
            with file_lock(out, "another build or export", "wait for its end", patience=_PATIENCE):
                check()
                # A folder without a manifest is not a build, so an interrupted move cannot pass for one.
                for name in {MANIFEST, *earlier}.difference(names):
                    (out / name).unlink(missing_ok=True)
                for name in (*names, CARD_NAME, MANIFEST):
                    os.replace(staging / name, out / name)
    except OSError as error:
        raise UserError(
            f"{error.filename or out}: cannot be written ({error.strerror or error})",
            remedy="make room, or name another folder with --out; replies of a judge are kept in its cache",
        ) from None
    return [out / name for name in (*names, MANIFEST, CARD_NAME)]


def _is_leftover(folder: Path) -> bool:
    """Whether a folder has only what a build or an export writes: a user may give their own such a name."""
    return {path.name for path in folder.iterdir() if path.suffix != ".partial"} <= {*_FILES, *EXPORTED}


@dataclass(frozen=True)
class Rewriting:
    """Rows by split (or file) that are written again, with the manifest of their build; None for a file."""

    rows: dict[str, list[EventSample]]
    out: Path
    manifest: dict[str, Any] | None
    overwrite: bool

    def write(self, rows: Mapping[str, Sequence[EventSample]], **parts: Any) -> list[Path]:
        """Write the rows under their names, a build with `parts` in manifest and card; return the files."""
        if self.manifest is None:
            [samples] = rows.values()
            write_samples(samples, self.out)
            return [self.out]
        description = {name: part for name, part in self.manifest.items() if name != "outputs"} | parts
        description["datasets"] = {
            name: {**dataset, "splits": {split: _counted(entry, name, rows.get(split, ()))
                                         for split, entry in dataset["splits"].items()}}
            for name, dataset in self.manifest["datasets"].items()
        }  # fmt: skip
        by_split = {split: rows[split] for split in SPLITS if split in rows}
        return write_build(self.out, by_split, [], description, overwrite=self.overwrite)


def open_rewriting(data: Path, out: Path, *, overwrite: bool) -> Rewriting:
    """Read the rows of a build folder or a file; UserError, before reading, if they cannot be written to `out`."""
    if out.resolve() == data.resolve():
        raise UserError(f"--out {out}: is also the input; expected another place", "name another one")
    files, is_build = files_of(data), data.is_dir()
    if is_build:
        check_early(out, partial(check_target, out, overwrite=overwrite))
        manifest = read_manifest(data)
    else:
        manifest = None
        check_readable(data)
        check_ending(out)
        if out.is_dir():
            raise UserError(f"--out {out}: is a folder, and {data} is a file; expected a .parquet or .jsonl file")
        if out.exists() and not overwrite:
            raise UserError(f"--out {out}: already exists", "name another file, or add --overwrite to replace it")
    for file in files if is_build else ():
        warn_if_changed(file, sha256_of(file))
    return Rewriting({file.stem: read_samples(file) for file in files}, out, manifest, overwrite)


def _counted(entry: Mapping[str, Any], name: str, rows: Sequence[EventSample]) -> dict[str, Any]:
    """A split's entry of the manifest, with the subsets of its rows."""
    subsets = Counter(row.subset for row in rows if row.subset and source_of(row) == name)
    return {**entry, **({"rows_by_subset": dict(sorted(subsets.items()))} if subsets else {})}
