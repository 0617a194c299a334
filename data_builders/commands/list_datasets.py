"""`d2e data list`: the datasets that can be built."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from d2e_sft.util.files import write_json
from data_builders.build.catalogue import describe_source
from data_builders.commands.text_table import print_table
from data_builders.sources import SOURCES


@click.command("list")
@click.option("--json", "json_file", metavar="FILE", help="Write all that is known as JSON; `-` prints it instead.")
def list_datasets(*, json_file: str | None) -> None:
    """List the datasets that d2e builds.

    Rows are the paper's counts of PIPER's test rows; where it counts two datasets together (ESTER and CQA as CSTER)
    each has the sum. The cache column says how many of the raw files are there already.

    \b
    Examples:
      d2e data list
      d2e data list --json - | jq '.[] | select(.raw_in_cache == 0).name'
    """
    found = [describe_source(source) for source in SOURCES.values()]
    if json_file == "-":
        click.echo(json.dumps(found, indent=2, ensure_ascii=False))
        return
    head = ("dataset", "format", "splits", "suites", "test rows", "raw", "cache", "licence", "source")
    print_table([head, *(_row(item) for item in found)])
    if json_file is not None:
        write_json(Path(json_file), found)
        click.echo(f"wrote {json_file}")


def _row(item: dict[str, Any]) -> tuple[str, ...]:
    files = len(item["raw_files"])
    return (
        item["name"],
        item["format"],
        " ".join(item["splits"]),
        " ".join(item["suites"]) or "-",
        f"{sum(item['test_rows'].values()):,}" if item["test_rows"] else "-",
        _size(item) if files else "generated",
        f"{item['raw_in_cache']}/{files}" if files else "-",
        item["licence"].split(" (")[0],
        item["homepage"] or "-",
    )


def _size(item: dict[str, Any]) -> str:
    if len(item["by_hand"]) == len(item["raw_files"]):
        return "by hand"
    return "?" if item["raw_bytes"] is None else f"{item['raw_bytes'] / 2**20:.1f} MiB"
