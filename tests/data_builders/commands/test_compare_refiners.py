"""`d2e data compare-refiners`: what it prints, writes and refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from d2e_sft.cli import main
from data_builders.commands import data

# Ten words each; the answer stands in a sentence that shares no word with the question, but for the answer.
CONTEXT = (
    "Ann painted the fence of the house in early spring. "
    "A neighbour of hers had sold her some cheap paint. "
    "Rain then fell on the street for two whole days. "
    "Nobody in that long street had ever seen such weather."
)

ON_THREE = ("compare-refiners", "--datasets", "timeqa,ifqa,ester")


def test_the_command_prints_a_line_each_and_writes_json(raw: Path, tmp_path: Path) -> None:
    target = tmp_path / "deep" / "table.json"
    row = {"idx": 0, "question": "If Ann had no fence, what stays?", "answers": ["cheap paint"], "context": [CONTEXT]}
    (raw / "ifqa/full_split/test.json").write_text(json.dumps([row]))
    result = CliRunner().invoke(
        data, [*ON_THREE, "--raw", str(raw), "--scorers", "overlap,bm25", "--json", str(target)]
    )
    assert result.exit_code == 0, result.output
    rows = json.loads(target.read_text())["rows"]
    assert {row["scorer"] for row in rows} == {"overlap", "bm25", "default", "default, nothing kept by rule"}
    assert {(row["dataset"], row["samples"]) for row in rows} == {("ifqa", 1), ("timeqa", 1)}
    assert "ester: no sample has what decides in a context of several sentences" in result.stderr


def test_no_usable_sample_at_all_is_an_error(raw: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(raw / "timeqa")
    with pytest.raises(SystemExit):
        main(["data", *ON_THREE, "--raw", str(raw), "--scorers", "overlap"])
    assert "no usable sample in timeqa, ifqa, ester" in capsys.readouterr().err


def test_an_unknown_scorer_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["data", "compare-refiners", "--scorers", "bm52"])
    assert "got 'bm52'; expected some of overlap, bm25, embedding" in capsys.readouterr().err
