"""Find the raw files of a source in the user's folder, or download them to the cache."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from d2e_sft.data.sample import Split
from d2e_sft.util.errors import UserError, did_you_mean
from data_builders.raw.download import fetch, how_to_get
from data_builders.raw.source import FoundFile, Input, RawFile, Source


class MissingRawFileError(UserError):
    """Raw files are neither in the user's folder nor downloadable."""

    @classmethod
    def of(cls, errors: Sequence[UserError]) -> MissingRawFileError:
        """Return one error that names all files."""
        return cls(errors[0].message, errors[0].remedy) if len(errors) == 1 else cls("\n".join(map(str, errors)))


@dataclass(frozen=True)
class Located:
    """The files that a source needs for some splits, and errors for missing ones, both by the input's key."""

    source: Source
    files: dict[str, FoundFile] = field(default_factory=dict)
    missing: dict[str, MissingRawFileError] = field(default_factory=dict)

    def of(self, splits: Collection[Split]) -> dict[str, FoundFile]:
        """Return the files of the inputs that the splits need; MissingRawFileError names all that are missing."""
        keys = [item.key for item in self.source.inputs if set(item.splits) & set(splits)]
        if errors := [self.missing[key] for key in keys if key in self.missing]:
            raise MissingRawFileError.of(errors)
        return {key: self.files[key] for key in keys}

    def substitutes(self, split: Split) -> list[str]:
        """Return a line for each file that replaces official ones of the split, with how it differs."""
        replaced: dict[RawFile, list[str]] = {}
        for item in self.source.inputs:
            used = self.files.get(item.key)
            if split in item.splits and used is not None and used.file.substitute:
                official = item.candidates[0]
                replaced.setdefault(used.file, []).extend([official.name] if official is not used.file else [])
        lines = []
        for file, names in replaced.items():
            more = f"{names[0]} and {len(names) - 1} more are not here; " if len(names) > 1 else ""
            absent = more or "".join(f"{name} is not here; " for name in names)
            lines.append(f"{absent}{file.name} is read: {file.substitute}")
        return lines


def locate_files(
    source: Source, splits: Collection[Split], raw: Path | None, chosen: Mapping[str, str] | None = None
) -> Located:
    """Find or download the files of the inputs that the splits need.

    Args:
        raw: folder with `<dataset>/<file>`; None downloads.
        chosen: the user's choices among the candidates of an input, by input key.
    """
    if raw is not None and source.own is None and not raw.is_dir():
        raise UserError(f"--raw {raw}: no such folder; expected a folder with raw files as DATASET/FILE")
    located = Located(source)
    for item in source.inputs:
        if set(item.splits) & set(splits):
            try:
                located.files[item.key] = _find(source, item, raw, (chosen or {}).get(item.key))
            except MissingRawFileError as error:
                located.missing[item.key] = error
    return located


def _find(source: Source, item: Input, raw: Path | None, name: str | None) -> FoundFile:
    candidates = item.candidates
    if name is not None:
        names = [file.name for file in candidates]
        if name not in names:
            raise UserError(
                f"{source.name}.{item.key}_file={name}: no such file of {source.name}; "
                f"expected one of {', '.join(names)}.{did_you_mean(name, names)}"
            )
        candidates = (candidates[names.index(name)],)
    if candidates[0].own is not None:
        return FoundFile(candidates[0], candidates[0].own)
    if raw is None:
        file = next((file for file in candidates if file.url), candidates[0])
        try:
            return FoundFile(file, fetch(source.raw_folder, file))
        except UserError as error:
            files = (f for f in item.candidates if f.url and f.substitute and f is not file)
            hints = [f". Or add {source.name}.{item.key}_file={f.name}, which reads {f.substitute}" for f in files]
            raise MissingRawFileError(error.message, remedy="".join([str(error.remedy), *hints])) from None
    for file in candidates:
        path = raw / source.raw_folder / file.name
        if path.is_file():
            return FoundFile(file, path)
    raise MissingRawFileError(
        f"{raw / source.raw_folder / candidates[0].name}: no such file; expected a raw file of {source.name} "
        f"({' or '.join(file.name for file in candidates)}), which its {' and '.join(item.splits)} rows need",
        remedy=how_to_get(source.raw_folder, candidates[0])
        + (", or drop --raw and let the builder download it" if candidates[0].url else ""),
    )
