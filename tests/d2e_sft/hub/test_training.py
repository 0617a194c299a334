"""What a model card says about the training data."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import ModelCard

from d2e_sft.config.recipe import load_recipe
from tests.d2e_sft.hub.runs import card_of, make_run, rows_of, section_of, write_data_record, write_manifest


def test_licences_are_the_manifests(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write_manifest(run)
    rows = rows_of(section_of(card_of(run), "Training data"))
    assert rows[2:] == [
        ["[made-up](https://example.org/made-up)", "temporal", "8", "CC-BY-4.0", "allowed by the licence"]
    ]


def test_licences_are_unknown_where_no_manifest_vouches_for_the_rows(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    assert "Licences: unknown (no manifest of a build next to the file)" in section_of(card_of(run), "Training data")
    write_manifest(run, sha256="0")
    assert "Licences: unknown (the manifest next to the file describes other rows)" in card_of(run)
    assert "licences of its training data are unknown" in section_of(card_of(run), "Limits")
    assert ModelCard(card_of(run)).data.language is None


def test_the_rows_are_counted_where_the_run_recorded_them(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    recipe = load_recipe(run / "recipe.yaml")
    write_data_record(run)
    write_manifest(run)
    Path(recipe.data.train).write_bytes(b"other rows by now")
    data = section_of(card_of(run), "Training data")
    assert "5 samples of 8 rows of `data/train.parquet`" in data
    assert "CC-BY-4.0" in data, "the run recorded the rows that the manifest describes"
