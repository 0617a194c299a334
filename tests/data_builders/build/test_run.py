"""Building several datasets: files, manifest, determinism and what bad input leads to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from d2e_sft.data.sample import read_samples
from d2e_sft.util.errors import UserError
from data_builders.build.options import BuildOptions
from data_builders.build.run import build


def test_a_dataset_has_the_same_rows_whatever_else_is_built(raw: Path, tmp_path: Path) -> None:
    build(BuildOptions(["cider", "tracie"], tmp_path / "both", raw))
    build(BuildOptions(["tracie"], tmp_path / "alone", raw))
    both = [s for s in read_samples(tmp_path / "both" / "test.parquet") if s.dataset == "tracie"]
    assert both == read_samples(tmp_path / "alone" / "test.parquet")


def test_a_split_without_rows_has_no_file_and_leftovers_go(raw: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    build(BuildOptions(["tracie"], out, raw))
    (out / "own.txt").write_text("mine")
    with pytest.raises(UserError, match=r"already contains a build(.|\n)*--overwrite"):
        build(BuildOptions(["cider"], out, raw))
    assert (out / "train.parquet").is_file()
    build(BuildOptions(["cider"], out, raw, overwrite=True))
    assert sorted(path.name for path in out.iterdir()) == ["README.md", "manifest.json", "own.txt", "test.parquet"]


def test_bad_rows_are_put_aside_and_counted(raw: Path, tmp_path: Path) -> None:
    path = raw / "tracie/iid/tracie_train.txt"
    path.write_text(path.read_text("utf-8") + "no row at all\n", encoding="utf-8")
    with (raw / "ecare/train.jsonl").open("ab") as file:
        file.write(b'{"index": "\xff"}\n[1]\n')
    build(BuildOptions(["tracie", "ecare"], tmp_path / "out", raw, skip_bad=True))
    aside = [json.loads(line) for line in (tmp_path / "out/bad_rows.jsonl").read_text("utf-8").splitlines()]
    assert [(entry["file"], entry["line"]) for entry in aside] == [
        ("tracie/iid/tracie_train.txt", 5),
        ("ecare/train.jsonl", 4),
        ("ecare/train.jsonl", 5),
    ]
    assert "not UTF-8" in aside[1]["error"]
    datasets = json.loads((tmp_path / "out/manifest.json").read_text("utf-8"))["datasets"]
    assert datasets["ecare"]["splits"]["train"]["bad_rows"] == 2
    assert datasets["ecare"]["splits"]["test"]["bad_rows"] == 0


def test_a_file_of_bad_rows_only_is_an_error(raw: Path, tmp_path: Path) -> None:
    (raw / "tracie/iid/tracie_test.txt").write_text("nothing\n")
    with pytest.raises(UserError, match=r"tracie, test: none of its rows is usable \(1 bad\)"):
        build(BuildOptions(["tracie"], tmp_path / "out", raw, skip_bad=True))


def test_a_missing_raw_file_names_path_and_address(raw: Path, tmp_path: Path) -> None:
    (raw / "mctaco/test_9442.tsv").unlink()
    with pytest.raises(UserError, match=r"raw/mctaco/test_9442\.tsv: no such file") as caught:
        build(BuildOptions(["mctaco"], tmp_path / "out", raw))
    assert "https://raw.githubusercontent.com/CogComp/MCTACO/" in str(caught.value)
    assert "drop --raw" in str(caught.value)


def test_no_data_is_an_error_even_when_bad_rows_are_skipped(raw: Path, tmp_path: Path) -> None:
    (raw / "mctaco/dev_3783.tsv").write_text(" \n\n")
    with pytest.raises(UserError, match="the file is empty"):
        build(BuildOptions(["mctaco"], tmp_path / "out", raw, skip_bad=True))


@pytest.mark.parametrize("name", ["README.md", "train.parquet", "manifest.json"])
def test_files_that_no_build_wrote_are_not_overwritten(raw: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{}")
    with pytest.raises(UserError, match=f"contains {name}, which no build of this project wrote"):
        build(BuildOptions(["mctaco"], tmp_path, raw))
    assert (tmp_path / name).read_text() == "{}"
