"""Facts of runs stand side by side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from eval.compare.runs import load_runs
from eval.pages.report.facts import run_facts
from eval.pages.report.page import render_page
from tests.factories import make_run, prediction

RECORD = {
    "source": {"train": "t.parquet", "train_sha256": "ab", "rows": 1234, "prompt_set": "p", "prompt_set_sha256": "c"},
    "samples": 900,
    "tokens_sha256": "d",
    "processes": 8,
    "versions": {"torch": "2.13.0", "peft": "0.21.2"},
    "wording": "neutral",
}


def test_facts_are_side_by_side_and_differences_are_marked(tmp_path: Path) -> None:
    rows = [prediction(1, True)]
    same = {"seconds": 5.0, "model": "some/model"}
    paths = [
        make_run(tmp_path / "base", rows, **same, environment={"torch": "2.9.0", "device": "cpu", "processes": 1}),
        make_run(tmp_path / "d2e", rows, **same, environment={"torch": "2.9.0", "device": "H200", "processes": 8}),
    ]
    (paths[1] / "data.json").write_text(json.dumps(RECORD))
    runs = load_runs(paths)
    tables = run_facts(runs, [None, None])
    environment = {fact.name: fact for fact in tables["Environment of the evaluation"]}
    assert environment["torch"].shared
    assert environment["device"].values == ("cpu", "H200")
    assert environment["device"].differs
    training = {fact.name: fact for fact in tables["Training and its environment"]}
    assert training["processes"].values == ("–", "8")
    assert training["rows in it"].values == ("–", "1,234")
    assert not training["torch"].differs, "a run that was not trained has no other version"
    assert training["prompt set"].values == ("–", "neutral"), "the one that worded its rows, and not the one named"
    page = render_page(runs)
    assert "≠ device</th><td>cpu</td><td>H200</td>" in page
    assert '<td colspan="2">some/model</td>' in page


def test_options_by_likelihood_differ_from_parsed_answers_and_a_damaged_record_is_named(tmp_path: Path) -> None:
    own = {"answer": "likelihood", "normalise": "tokens", "without_options": 3}
    rows = [prediction(1, True)]
    runs = load_runs([make_run(tmp_path / "a", rows, **own), make_run(tmp_path / "b", rows)])
    facts = {fact.name: fact.values for fact in run_facts(runs, [None, None])["Evaluation"]}
    assert facts["answers"][0] == "the likeliest option (log-probability by tokens)"
    assert facts["answers"][1].startswith("100.0 %")
    assert facts["rows without options left out"][0] == "3"
    run = make_run(tmp_path / "run", rows)
    (run / "data.json").write_text('{"samples": "many"}')
    with pytest.raises(UserError, match=r"run/data\.json: not the record of a training \(.*samples: got 'many'"):
        render_page(load_runs([run]))
