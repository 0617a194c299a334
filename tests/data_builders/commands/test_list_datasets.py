"""`d2e data list`: every dataset, with what is known of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from data_builders.build.suites import SUITES
from data_builders.raw.download import cached_path
from data_builders.sources import SOURCES
from tests.command import output_of


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("D2E_CACHE", str(tmp_path))


def listed() -> dict[str, dict[str, Any]]:
    return {item["name"]: item for item in json.loads(output_of("data", "list", "--json", "-"))}


def test_every_dataset_has_a_row_and_an_object_in_the_file(tmp_path: Path) -> None:
    head, *rows = output_of("data", "list", "--json", tmp_path / "list.json").splitlines()
    assert head.split()[:2] == ["dataset", "format"]
    assert [row.split()[0] for row in rows[:-1]] == list(SOURCES)
    assert [item["name"] for item in json.loads((tmp_path / "list.json").read_text())] == list(SOURCES)


def test_files_in_the_cache_are_counted() -> None:
    assert listed()["ecare"]["raw_in_cache"] == 0
    file = SOURCES["ecare"].official[0]
    path = cached_path("ecare", file)
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    assert listed()["ecare"]["raw_in_cache"] == 1


def test_rows_are_the_papers_and_suites_shares_and_sizes_are_said() -> None:
    found = listed()
    assert found["cider"]["test_rows"] == {"temporal": 136, "causal": 1_469, "subevent_conditional": 356}
    assert found["ester"]["test_rows"] == {"causal": 1_617, "counterfactual": 1_957, "subevent_conditional": 108}
    assert found["boxes"]["test_rows"] == {}
    for suite in SUITES.values():
        assert [name for name, item in found.items() if suite.name in item["suites"]] == [
            name for name in SOURCES if name in suite.datasets
        ]
    assert sum(item["share_of_piper_10k"] or 0 for item in found.values()) == pytest.approx(100, abs=0.01)
    assert found["ecare"]["raw_bytes"] == sum(file.bytes for file in SOURCES["ecare"].official) > 0
    assert found["storycloze"]["by_hand"], "handed out on request"
    assert found["storycloze"]["raw_bytes"] is None
