"""Small raw files give the samples of samples.yaml, and damaged rows the messages of bad_rows.yaml."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from d2e_sft.util.errors import UserError
from data_builders.build.suites import SUITES
from data_builders.raw.reader import BadRows
from data_builders.sources import SOURCES
from tests.data_builders.reading import read, replace, use_substitutes


def _table(name: str) -> list[dict[str, Any]]:
    return yaml.safe_load(Path(__file__).with_name(name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", _table("samples.yaml"), ids=lambda case: f"{case['dataset']}: {case['what']}")
def test_raw_rows_become_these_samples(raw: Path, case: dict[str, Any]) -> None:
    name, split = case["dataset"], case["split"]
    if case.get("substitutes"):
        use_substitutes(raw, name)
    rows = read(raw, name, (split,), *case.get("settings", ()))[split].rows
    found = [row.model_dump() | {f"meta.{key}": value for key, value in row.meta.items()} for row in rows]
    assert [{field: row[field] for field in case["samples"][0]} for row in found] == case["samples"]


_BAD_ROWS = [(table, *row) for table in _table("bad_rows.yaml") for row in table["rows"]]


@pytest.mark.parametrize(
    ("table", "old", "new", "message"),
    _BAD_ROWS,
    ids=[f"{table['dataset']}: {message}" for table, *_, message in _BAD_ROWS],
)
def test_a_bad_row_is_reported_with_file_place_field_and_value(
    raw: Path, table: dict[str, Any], old: str, new: str, message: str
) -> None:
    if table.get("substitutes"):
        use_substitutes(raw, table["dataset"])
    replace(raw / table["file"], old, new)
    blamed = re.escape(table.get("blamed", Path(table["file"]).name))
    with pytest.raises(UserError, match=rf"{blamed}(, )?{message}"):
        read(raw, table["dataset"], (table.get("split", "test"),))


def test_a_bad_row_can_be_skipped_and_is_recorded_once(raw: Path) -> None:
    replace(raw / "ood/socialiqa/dev.jsonl", '"context": "Ann fell."', '"context": 3')
    bad = BadRows(skip=True)
    (sample,) = read(raw, "socialiqa", bad=bad)["test"].rows
    assert sample.meta["line"] == 2
    (entry,) = bad.entries
    assert (entry["file"], entry["line"]) == ("ood/socialiqa/dev.jsonl", 1)


def test_a_missing_file_that_cannot_be_downloaded_comes_with_the_way_to_get_it(raw: Path) -> None:
    (raw / "ood/storycloze/cloze_test_val__spring2016.csv").unlink()
    with pytest.raises(UserError) as error:
        read(raw, "storycloze")
    assert "cs.rochester.edu/nlp/rocstories" in str(error.value.remedy)


def test_the_explanation_of_ecare_is_never_shown(raw: Path) -> None:
    assert "Never to be seen" in (raw / "ecare/dev_full.jsonl").read_text(encoding="utf-8")
    rows = [row for split in read(raw, "ecare").values() for row in split.rows]
    assert not any("Never to be seen" in row.model_dump_json() for row in rows)


def test_no_suite_has_the_systems_benchmarks() -> None:
    assert all(
        name in SOURCES and name not in suite.datasets for suite in SUITES.values() for name in ("crepe", "openpi2")
    )


def test_facts_have_an_address_at_a_fixed_commit_and_a_way_to_get_each_file() -> None:
    ecare, timeqa = SOURCES["ecare"].official[0], SOURCES["timeqa"].inputs[1].candidates[1]
    commit = "c3b52648adcc919303a297a377811e24d703e197"
    assert ecare.url == (
        f"https://raw.githubusercontent.com/Waste-Wood/e-CARE/{commit}/dataset/Causal_Reasoning/train.jsonl"
    )
    assert (ecare.name, ecare.commit, ecare.bytes) == ("train.jsonl", commit, 3_495_616)
    assert timeqa.url.endswith("/TimeBench-full-19000.zip")
    assert timeqa.member.endswith("/timeqa_hard_500.jsonl")
    files = [file for source in SOURCES.values() for item in source.inputs for file in item.candidates]
    assert all(file.url.startswith("https://") or file.by_hand for file in files)
