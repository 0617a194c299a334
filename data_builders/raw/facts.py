"""Facts about a source: raw files, licence and notes, from the YAML file with its name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from d2e_sft.util.files import load_package_yaml
from data_builders.raw.source import Input, Job, RawFile, Source, SourceOptions, SplitSamples


def source(
    module: str | Path, read: Callable[[Job], SplitSamples], options: type[SourceOptions] = SourceOptions
) -> Source:
    """Return a source with the facts of a YAML file, by default the one that has the module's name.

    The keys of the file are those of `Source`. Each of `inputs` has a `key`, `splits` and candidate `files`, with the
    keys of `RawFile`. A `url` is relative to `base` and may be left out if it equals the name. `commit` applies to
    relative addresses.
    """
    path = Path(module).with_suffix(".yaml")
    facts = load_package_yaml(path)
    base, commit = facts.pop("base", ""), facts.pop("commit", "")
    inputs = [
        Input(item["key"], tuple(_file(entry, base, commit) for entry in item["files"]), tuple(item["splits"]))
        for item in facts.pop("inputs", ())
    ]
    others = tuple(_file(entry, base, commit) for entry in facts.pop("others", ()))
    splits = tuple(facts.pop("splits", ("train", "test")))
    return Source(path.stem, inputs=tuple(inputs), read=read, options=options, splits=splits, others=others, **facts)


def _file(entry: dict[str, Any], base: str, commit: str) -> RawFile:
    url = entry.get("url", "" if "by_hand" in entry else entry["name"])
    if url and "://" not in url:
        entry = {"commit": commit, **entry, "url": f"{base}/{url}"}
    return RawFile(**entry)
