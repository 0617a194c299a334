"""Small raw files give the rows of samples.yaml, and damaged rows the messages of bad_rows.yaml."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from d2e_sft.util.errors import UserError
from data_builders.build.suites import SUITES
from data_builders.refine.rules import RefinerOptions, refine_samples
from data_builders.sources import SOURCES
from tests.data_builders.reading import read, replace, use_substitutes

SNAPSHOT = Path(__file__).with_name("samples.yaml")
CASES = yaml.safe_load(SNAPSHOT.read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['dataset']}: {case['what']}")
def test_raw_rows_become_these_samples(raw: Path, case: dict[str, Any]) -> None:
    """Whole rows with their refined contexts, and the rows after each filter; D2E_UPDATE=1 writes the snapshot."""
    name, split = case["dataset"], case["split"]
    if case.get("substitutes"):
        use_substitutes(raw, name)
    found = read(raw, name, (split,), *case.get("settings", ()))[split]
    rows = refine_samples(list(found.rows), RefinerOptions())
    found = {
        "filters": {step.name: f"{step.rows_in} → {step.rows_out} {step.unit}" for step in found.filters},
        "samples": [row.model_dump(mode="json", exclude_defaults=True, exclude={"dataset", "split"}) for row in rows],
    }
    if os.environ.get("D2E_UPDATE"):
        case |= found
        SNAPSHOT.write_text("\n".join(map(_written, CASES)), encoding="utf-8")
    assert found == {key: case[key] for key in found}


def _written(case: dict[str, Any]) -> str:
    """A case with a line for each row."""
    head = yaml.safe_dump([{**case, "samples": []}], allow_unicode=True, sort_keys=False, width=115)
    rows = "".join(f"\n  - {json.dumps(row, ensure_ascii=False)}" for row in case["samples"])
    return head.replace("  samples: []\n", f"  samples:{rows or ' []'}\n")


BAD_ROWS = yaml.safe_load(Path(__file__).with_name("bad_rows.yaml").read_text(encoding="utf-8"))
_DAMAGES = [(table, *row) for table in BAD_ROWS for row in table["rows"]]


@pytest.mark.parametrize(
    ("table", "old", "new", "message"), _DAMAGES, ids=[f"{table['dataset']}: {text}" for table, *_, text in _DAMAGES]
)
def test_a_bad_row_is_named_by_its_place(raw: Path, table: dict[str, Any], old: str, new: str, message: str) -> None:
    if table.get("substitutes"):
        use_substitutes(raw, table["dataset"])
    replace(raw / table["file"], old, new)
    blamed = re.escape(table.get("blamed", Path(table["file"]).name))
    with pytest.raises(UserError, match=rf"{blamed}(, )?{message}"):
        read(raw, table["dataset"], (table.get("split", "test"),))


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
    benchmarks = {"crepe", "openpi2"}
    assert benchmarks <= set(SOURCES)
    assert all(benchmarks.isdisjoint(suite.datasets) for suite in SUITES.values())


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
