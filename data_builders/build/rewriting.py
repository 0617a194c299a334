"""Write a build, or a file of samples, again with other fields in its rows, as `d2e data tag` does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from d2e_sft.data.built import read_manifest, warn_if_changed
from d2e_sft.data.sample import EventSample, check_ending, check_readable, read_samples, write_samples
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import sha256_of
from data_builders.build.compose import source_of
from data_builders.build.writing import check_target, write_build
from data_builders.dataset.sample_sets import files_of
from data_builders.raw.source import SPLITS


@dataclass(frozen=True)
class Rewriting:
    """Rows by the name of their split (or of their file), and where they are written again.

    `manifest` is that of the build; None for a file.
    """

    rows: dict[str, list[EventSample]]
    out: Path
    manifest: dict[str, Any] | None

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
        return write_build(self.out, by_split, [], description)


def open_rewriting(data: Path, out: Path, *, overwrite: bool) -> Rewriting:
    """Read the rows of a build folder or a file, to be written to `out`.

    UserError, before anything is read, if `data` is missing, or if `out` is of another kind, is `data` itself, or
    cannot be written. Also if it exists, unless `overwrite` replaces it.
    """
    if out.resolve() == data.resolve():
        raise UserError(f"--out {out}: is also the input; expected another place", "name another one")
    files, is_build = files_of(data), data.is_dir()
    if is_build:
        check_target(out, overwrite=overwrite)
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
    return Rewriting({file.stem: read_samples(file) for file in files}, out, manifest)


def _counted(entry: Mapping[str, Any], name: str, rows: Sequence[EventSample]) -> dict[str, Any]:
    """A split's entry of the manifest, with the subsets of its rows."""
    subsets = Counter(row.subset for row in rows if row.subset and source_of(row) == name)
    return {**entry, **({"rows_by_subset": dict(sorted(subsets.items()))} if subsets else {})}
