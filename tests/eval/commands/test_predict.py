"""`d2e predict`: its options are those of `d2e eval`, and what it says at the end."""

from __future__ import annotations

import csv
from pathlib import Path

from tests.command import output_of, refusal_of
from tests.tiny import save_tiny_model


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
