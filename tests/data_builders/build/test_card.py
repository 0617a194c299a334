"""The dataset card: what the Hub and `load_dataset` read from it, and what it tells a person."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from datasets import load_dataset
from huggingface_hub import DatasetCard

from d2e_sft.data.built import read_manifest
from d2e_sft.data.sample import read_samples
from data_builders.build.card import render_card
from data_builders.build.options import BuildOptions
from data_builders.build.run import build
from data_builders.commands import data


def _built(raw: Path, out: Path, *datasets: str, **options: Any) -> dict[str, Any]:
    build(BuildOptions(datasets, out, raw, **options))
    return read_manifest(out)


def _section(card: str, title: str) -> list[list[str]]:
    """The cells of a section's table, without its header."""
    text = card.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def test_the_hub_understands_the_front_matter(raw: Path, tmp_path: Path) -> None:
    _built(raw, tmp_path, "tracie", "mctaco", "ecare")
    metadata = DatasetCard.load(tmp_path / "README.md").data.to_dict()
    assert metadata["license"] == ["apache-2.0", "mit", "unknown"]
    assert metadata["task_categories"] == ["multiple-choice", "text-classification"]
    assert metadata["size_categories"] == ["n<1K"]
    assert metadata["language"] == ["en"]


def test_names_put_no_html_into_the_front_matter(raw: Path, tmp_path: Path) -> None:
    manifest = _built(raw, tmp_path, "tracie")
    name = "<script>alert(1)</script>"
    card = render_card(manifest | {"datasets": {name: manifest["datasets"]["tracie"]}})
    assert "<" not in card.split("\n---\n")[0]
    data = DatasetCard(card).data.to_dict()
    assert name in data["pretty_name"]
    assert data["size_categories"] == ["n<1K"]


def test_load_dataset_reads_the_folder_by_its_card_which_counts_its_rows(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    _built(raw, tmp_path / "out", "tracie", "ecare")
    loaded = load_dataset(str(tmp_path / "out"), cache_dir=str(tmp_path / "cache"))
    assert set(loaded) == {"train", "test"}
    for split, rows in loaded.items():
        samples = read_samples(tmp_path / "out" / f"{split}.parquet")
        assert rows["id"] == [sample.id for sample in samples]
        assert rows["refined_context"] == [sample.refined_context for sample in samples]
    *counts, total = _section((tmp_path / "out/README.md").read_text("utf-8"), "Rows")
    assert {tuple(kind): int(count) for *kind, count in counts} == Counter(
        (row["dataset"], row["relation"], row["format"], split) for split, rows in loaded.items() for row in rows
    )
    assert int(total[-1]) == sum(map(len, loaded.values()))


def test_a_card_warns_of_the_sources_that_must_not_be_published(raw: Path, tmp_path: Path) -> None:
    card = render_card(_built(raw, tmp_path / "a", "mctaco", "tracie"))
    assert "**Do not publish this data.**" in card
    assert "> - **mctaco**: the publishers state no licence" in card
    assert "> - **tracie**" not in card
    licences = {row[0].split("]")[0].strip("["): row[2] for row in _section(card, "Licences")}
    assert licences == {"mctaco": "**no**: the publishers state no licence", "tracie": "allowed by the licence"}
    assert "Do not publish" not in render_card(_built(raw, tmp_path / "b", "tracie"))


def test_a_closed_dataset_without_rows_gives_no_warning(raw: Path, tmp_path: Path) -> None:
    manifest = _built(raw, tmp_path, "mctaco", "tracie")
    for split in manifest["datasets"]["mctaco"]["splits"].values():
        split["rows_written"] = 0
    card = render_card(manifest)
    assert "Do not publish" not in card
    assert "mctaco" not in card.partition("## How to build")[0]


def test_the_command_in_the_card_builds_the_same_bytes(raw: Path, tmp_path: Path) -> None:
    settings = ["boxes.boxes=2", "boxes.train_samples=6", "boxes.test_samples=3", "refine.max_share=0.5"]
    assert str(tmp_path) not in render_card(_built(raw, tmp_path / "a", "boxes", "tracie", seed=7, settings=settings))
    command = re.findall(r"^\$ d2e data (build .*)$", (tmp_path / "a/README.md").read_text("utf-8"), re.MULTILINE)[0]
    arguments = ["--raw", str(raw), *command.replace("OUT", str(tmp_path / "b")).split()[1:]]
    data.main(["build", *arguments], standalone_mode=False)
    for name in ("train.parquet", "test.parquet", "manifest.json", "README.md"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_published_counts_and_mixture_are_shown_where_there_are_some(raw: Path, tmp_path: Path) -> None:
    manifest = _built(raw, tmp_path, "tracie")
    assert "Published" not in render_card(manifest)
    assert "Mixture" not in render_card(manifest)
    count = {"relation": "temporal", "dataset": "tracie", "format": "nli", "published": 2039, "obtained": 4}
    part = {"ratio": 100.0, "asked": 4, "drawn": 4, "drawn_ratio": 100.0, "reason": ""}
    parts = {"published_counts": [count | {"reason": "a | b <c>"}], "mixture": {"datasets": {"tracie": part}}}
    card = render_card(manifest | parts)
    (row,) = _section(card, "Published and obtained counts")
    assert row == ["temporal", "tracie", "nli", "2,039", "4", "a \\| b &lt;c>"]
    assert _section(card, "Mixture") == [["tracie", "100.00", "4", "4", "100.00", ""]]


def test_what_the_rows_were_kept_apart_from_is_shown(raw: Path, tmp_path: Path) -> None:
    assert "Kept apart" not in render_card(_built(raw, tmp_path / "a", "tracie"))
    card = render_card(_built(raw, tmp_path / "b", "tracie", against=[tmp_path / "a"]))
    assert "of a test row of a, has its context or asks its question, nor shares" in card
    assert "--against a" in card
