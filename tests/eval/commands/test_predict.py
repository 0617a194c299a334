"""`d2e predict`: its options are those of `d2e eval`, and what it says at the end."""

from __future__ import annotations

import csv
from pathlib import Path

from d2e_sft.cli import d2e as command
from eval.commands.evaluate import evaluate
from eval.commands.predict import predict
from tests.command import output_of, refusal_of
from tests.tiny import save_tiny_model


def test_options_of_decoding_are_those_of_an_evaluation() -> None:
    options = {parameter.name: parameter for parameter in evaluate.params}
    own = {"model", "file", "out", "mapping", "fmt", "relation", "setting", "decoder"}
    assert "decoder" in {parameter.name for parameter in predict.params}, "one, where an evaluation takes several"
    for parameter in predict.params:
        if parameter.name not in own:
            assert parameter.opts == options[parameter.name].opts
            assert parameter.default == options[parameter.name].default
    left_out = options.keys() - {parameter.name for parameter in predict.params}
    judge = {name for name in left_out if name.startswith("judge_")}
    # What is about benchmarks, scores and labelled rows.
    assert judge
    assert left_out - judge == {
        "bench", "suite", "data", "given", "outs", "decoders", "demonstrations", "max_samples", "seed",
        "without_context", "accept_edited",
    }  # fmt: skip
    assert command.get_command(command.make_context("d2e", ["predict"]), "predict") is predict


def test_a_mapping_names_the_columns_and_the_counts_are_told(tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "model", seed=3)
    (tmp_path / "mine.yaml").write_text(
        "train: not-here.csv\nformat: qa\ncolumns: {context: passage, question: ask, answer: label, id: ticket}\n"
    )
    (tmp_path / "new.csv").write_text(
        "ticket,passage,ask,note\nT-9,It rained.,Why?,x\nT-3,,Why?,x\nT-5,Sun.,When?,y\n"
    )
    line = ["predict", model, tmp_path / "new.csv", "--mapping", tmp_path / "mine.yaml", "--max-new-tokens", 4]
    error = refusal_of(*line, "--out", tmp_path / "a.csv")
    assert "new.csv, line 3: passage: got ''; expected text that is not empty" in error
    said = output_of(*line, "--out", tmp_path / "a.csv", "--skip-bad")
    assert f"{tmp_path / 'a.csv'}: 2 answers" in said
    assert f"bad rows skipped, kept in {tmp_path / 'a.csv.bad.jsonl'}: 1" in said
    with (tmp_path / "a.csv").open() as source:
        assert [row["id"] for row in csv.DictReader(source)] == ["T-9", "T-5"]
