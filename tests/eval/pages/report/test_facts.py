"""Facts of runs stand side by side; curves are as the log has them, with losses that cannot be compared apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from d2e_sft.util.errors import UserError
from eval.compare.runs import load_runs
from eval.pages.report.facts import Training, curves, read_training, run_facts
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


LOG = [{"step": step, "loss": 2.0 / step, "ce": 1.0 / step, "plain_accuracy": step / 4} for step in (1, 2, 3)]


def logged(folder: Path, log: list[dict[str, Any]]) -> Training:
    folder.mkdir(exist_ok=True)
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": log}))
    return read_training(folder)


def trained(folder: Path, d2e: str, **changes: float) -> Training:
    folder.mkdir()
    (folder / "recipe.yaml").write_text(f"data: {{train: x}}\ntrain: {{output_dir: x}}\nd2e: {{{d2e}}}\n")
    return logged(folder, [{**entry, **{key: entry[key] + more for key, more in changes.items()}} for entry in LOG])


def test_losses_of_other_terms_are_drawn_apart(tmp_path: Path) -> None:
    sft = trained(tmp_path / "sft", "objective: sft")
    d2e, same = (trained(tmp_path / name, "objective: d2e, alpha: 0.5") for name in ("d2e", "same"))
    weak = trained(tmp_path / "weak", "objective: d2e, alpha: 0.2")
    assert [one.terms for one in (sft, d2e, weak)][:2] == ["sft", "d2e, alpha 0.5, kl_weight 1.0"]
    charts = curves(["sft", "d2e", "same", "weak"], [sft, d2e, same, weak])
    found = [str(chart).partition("over training steps: ")[2].partition('"')[0] for chart in charts]
    assert [title.rpartition(" of ")[2] for title in found] == [
        "sft", "d2e, same", "weak",  # loss
        "sft", "d2e, same", "weak",  # cross-entropy
        "sft, d2e, same, weak",  # an accuracy is one, however it was trained
    ]  # fmt: skip
    assert found[1].startswith("Loss (d2e, alpha 0.5")


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"log_history": [1]}'])
def test_a_damaged_trainer_state_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "trainer_state.json").write_text(content)
    with pytest.raises(UserError, match=r"trainer_state\.json"):
        read_training(tmp_path)
