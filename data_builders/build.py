"""Datasets to files: resolve the raw files, run the sources, refine, write Parquet and manifest.

Files are written only after every dataset is built, so bad input leaves the folder as it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from tqdm import tqdm

from d2e_sft.errors import UserError, did_you_mean
from d2e_sft.sample import BAD_ROWS_FILE, EventSample, describe_validation_error, write_bad_rows, write_samples
from data_builders import manifest
from data_builders.download import fetch
from data_builders.raw import BadRows
from data_builders.refine import RefinerOptions, refine
from data_builders.sources import SOURCES
from data_builders.sources.source import Job, Source, SourceOptions, SplitRows

_REFINE = "refine"


@dataclass(frozen=True)
class Options:
    """What to build.

    Attributes:
        datasets: names, in the order in which their rows are written.
        out: folder for the results.
        raw: folder with `<dataset>/<file>`; None downloads.
        seed: for every draw.
        skip_bad: put bad raw rows aside instead of stopping at the first.
        settings: `KEY=VALUE` texts such as `boxes.boxes=3` or `refine.threshold=0.5`.
    """

    datasets: Sequence[str]
    out: Path
    raw: Path | None = None
    seed: int = 0
    skip_bad: bool = False
    settings: Sequence[str] = ()


@dataclass
class Result:
    """What was built.

    Attributes:
        files: the files written, the manifest last.
        counts: (dataset, split, relation, format) → rows.
        splits: (dataset, split) → its rows, for the filters.
        bad_rows: number of bad rows put aside.
        warnings: one line each.
    """

    files: list[Path] = field(default_factory=list)
    counts: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)
    splits: dict[tuple[str, str], SplitRows] = field(default_factory=dict)
    bad_rows: int = 0
    warnings: list[str] = field(default_factory=list)


def build(options: Options) -> Result:
    """Build the datasets into `options.out`: `<split>.parquet` for each split with rows, and `manifest.json`.

    Raises:
        UserError: an unknown dataset or setting, a missing or damaged raw file, or a bad row.
    """
    sources = pick_sources(options.datasets)
    settings = parse_settings(options.settings, sources)
    refiner = RefinerOptions.model_validate(settings.pop(_REFINE).model_dump())
    bad, result = BadRows(skip=options.skip_bad), Result()
    entries: dict[str, Any] = {}
    progress = tqdm(sources, desc="datasets", unit="dataset", disable=None, leave=False)
    for source in progress:
        progress.set_postfix_str(source.name)
        own = settings[source.name]
        assert isinstance(own, SourceOptions)
        paths = {file.name: raw_path(source, file.name, options.raw) for file in source.files}
        files = [manifest.describe_file(file, paths[file.name]) for file in source.files]
        result.warnings += [
            f"{source.name}/{file['name']}: {manifest.CHECKSUM_DIFFERS}; counts may differ from the published ones"
            for file in files
            if file["checksum"] == manifest.CHECKSUM_DIFFERS
        ]
        splits = source.read(Job(source.name, paths, options.seed, own, bad))
        for split, rows in splits.items():
            if not rows.samples and bad.count(source.name, split):
                raise UserError(
                    f"{source.name}, {split}: none of its rows is usable ({bad.count(source.name, split)} bad)",
                    remedy="its raw file is damaged or not what it should be; get it again",
                )
            rows.samples = [
                refine(sample, refiner) for sample in _with_progress(rows.samples, f"{source.name} {split}")
            ]
            result.splits[source.name, split] = rows
            result.counts.update((source.name, split, s.relation, s.format) for s in rows.samples)
        described: dict[str, Any] = {
            split: manifest.describe_split(rows, bad.count(source.name, split)) for split, rows in splits.items()
        }
        entries[source.name] = manifest.describe_dataset(source, own, files, described)
    _write(options, refiner, entries, bad, result)
    return result


def pick_sources(names: Iterable[str]) -> list[Source]:
    """The sources by name, each once.

    Raises:
        UserError: an unknown name, or no name.
    """
    sources = {}
    for name in names:
        if name not in SOURCES:
            raise UserError(
                f"unknown dataset {name!r}; expected some of {', '.join(SOURCES)}.{did_you_mean(name, SOURCES)}"
            )
        sources[name] = SOURCES[name]
    if not sources:
        raise UserError(f"no dataset named; expected some of {', '.join(SOURCES)}", remedy="pass --datasets")
    return list(sources.values())


def parse_settings(texts: Iterable[str], sources: Sequence[Source]) -> dict[str, BaseModel]:
    """`KEY=VALUE` texts as checked options, by dataset name, and for the refiner under `refine`.

    Raises:
        UserError: a text without `=`, an unknown key, or a value that the option refuses.
    """
    models: dict[str, type[BaseModel]] = {source.name: source.options for source in sources}
    models[_REFINE] = RefinerOptions
    known = [f"{name}.{key}" for name, model in models.items() for key in model.model_fields]
    values: dict[str, dict[str, str | None]] = {name: {} for name in models}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"got option {text!r}; expected KEY=VALUE, for example {known[0]}=VALUE")
        if key not in known:
            _refuse_key(key, known, models)
        if key.partition(".")[2] in values[key.partition(".")[0]]:
            raise UserError(f"option {key!r} is given twice", remedy="give it once")
        name, _, option = key.partition(".")
        values[name][option] = None if value.lower() in ("none", "null") else value
    return {name: _checked(name, model, values[name]) for name, model in models.items()}


def _refuse_key(key: str, known: list[str], models: Mapping[str, type[BaseModel]]) -> None:
    name = key.partition(".")[0]
    if name in SOURCES and name not in models:
        raise UserError(
            f"option {key!r} is for dataset {name!r}, which is not built", remedy=f"add {name} to --datasets"
        )
    raise UserError(f"unknown option {key!r}; expected some of {', '.join(known)}.{did_you_mean(key, known)}")


def _checked(name: str, model: type[BaseModel], values: Mapping[str, str | None]) -> BaseModel:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise UserError(f"option of {name}: {describe_validation_error(error)}") from None


def raw_path(source: Source, name: str, raw: Path | None) -> Path:
    """Where a raw file lies: in `--raw`, or in the cache after its download.

    Raises:
        UserError: `--raw` lacks it, or the download fails.
    """
    file = next(file for file in source.files if file.name == name)
    if raw is None:
        return fetch(source.name, file)
    path = raw / source.name / name
    if not path.is_file():
        raise UserError(
            f"{path}: no such file; expected the raw file of {source.name}",
            remedy=f"download it from {file.url}, or drop --raw and let the builder download it",
        )
    return path


def _with_progress(samples: list[EventSample], what: str) -> Iterable[EventSample]:
    return tqdm(samples, desc=what, unit="row", disable=None, leave=False)


def _write(options: Options, refiner: RefinerOptions, entries: dict[str, Any], bad: BadRows, result: Result) -> None:
    if not result.counts:
        raise UserError(
            f"no usable row in {', '.join(options.datasets)} ({len(bad.entries)} bad); nothing was written",
            remedy="run without --skip-bad to see the first bad row",
        )
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{options.out}: cannot be made ({error.strerror}); expected a folder for the results"
        ) from None
    for split in manifest.SPLITS:
        samples = [s for (_, name), rows in result.splits.items() if name == split for s in rows.samples]
        if samples:
            result.files.append(options.out / f"{split}.parquet")
            write_samples(samples, result.files[-1])
    if bad.entries:
        result.files.append(options.out / BAD_ROWS_FILE)
        write_bad_rows(bad.entries, result.files[-1])
    result.bad_rows = len(bad.entries)
    _remove_leftovers(options.out, {path.name for path in result.files})
    described = manifest.describe_build(options.seed, options.skip_bad, refiner.model_dump(), entries, result.files)
    result.files.append(manifest.write_manifest(described, options.out))


def _remove_leftovers(out: Path, written: set[str]) -> None:
    """Remove what an earlier build into the same folder wrote and this one did not: it would look like a result."""
    if manifest.is_ours(out):
        for name in {*(f"{split}.parquet" for split in manifest.SPLITS), BAD_ROWS_FILE} - written:
            (out / name).unlink(missing_ok=True)
