"""`d2e data list`: list the datasets."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from d2e_sft.util.files import write_json
from d2e_sft.util.table import Table
from data_builders.build.suites import SUITES
from data_builders.raw.files import cached_path
from data_builders.raw.source import Source
from data_builders.sources import SOURCES

_HEAD = ("dataset", "format", "splits", "suites", "test rows", "raw", "cache", "licence", "source")
_WIDE = ("splits", "source")


@click.command("list")
@click.option("--json", "json_file", metavar="FILE", help="Write all details as JSON; `-` prints them instead.")
@click.option("--wide", is_flag=True, help="Also show splits and sources.")
def list_datasets(*, json_file: str | None, wide: bool) -> None:
    """List the datasets that d2e builds.

    Rows are the paper's counts of PIPER's test rows; datasets that it counts together (ESTER and CQA as CSTER) have
    the sum. The cache column is the number of raw files in the cache.

    \b
    Examples:
      d2e data list
      d2e data list --json - | jq '.[] | select(.raw_in_cache == 0).name'
    """
    datasets = [_described(source) for source in SOURCES.values()]
    if json_file == "-":
        click.echo(json.dumps(datasets, indent=2, ensure_ascii=False))
        return
    table = Table.of(_HEAD, [_row(item) for item in datasets])
    shown = table if wide else replace(table, frame=table.frame.drop(columns=list(_WIDE)))
    click.echo(shown.terminal())
    if json_file is not None:
        write_json(Path(json_file), datasets)
        click.echo(f"wrote {json_file}")


def _described(source: Source) -> dict[str, Any]:
    """Return one dataset as plain values: licence, files with known sizes, suites.

    `test_rows` has the published counts by relation. None for `raw_bytes` means that a file's size is unknown.
    """
    official = source.official
    suites = [suite for suite in SUITES.values() if source.name in suite.datasets]
    return {
        "name": source.name,
        "format": source.format,
        "splits": list(source.splits),
        "licence": source.licence,
        "not_to_be_published": source.redistribution or None,
        "homepage": source.homepage,
        "raw_files": [file.name for file in official],
        "raw_bytes": sum(file.bytes for file in official) if all(file.bytes for file in official) else None,
        "raw_in_cache": sum(cached_path(source.raw_folder, file).is_file() for file in official),
        "by_hand": [file.name for file in official if not file.url],
        "suites": [suite.name for suite in suites],
        # Rows that PIPER counts for several datasets together are counted for each.
        "test_rows": {
            row.relation: row.count
            for suite in suites
            for row in suite.published
            if source.name in suite.sources_of(row)
        },
        "share_of_piper_10k": SUITES["piper-10k"].ratios.get(source.name),
    }


def _row(item: dict[str, Any]) -> tuple[str, ...]:
    files = len(item["raw_files"])
    size = "?" if item["raw_bytes"] is None else f"{item['raw_bytes'] / 2**20:.1f} MiB"
    return (
        item["name"],
        item["format"],
        " ".join(item["splits"]),
        " ".join(item["suites"]) or "-",
        f"{sum(item['test_rows'].values()):,}" if item["test_rows"] else "-",
        ("by hand" if len(item["by_hand"]) == files else size) if files else "generated",
        f"{item['raw_in_cache']}/{files}" if files else "-",
        item["licence"].split(" (")[0],
        item["homepage"] or "-",
    )
