"""Where benchmarks are searched, and the errors if none is found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from eval.run.benchmark import locate_benchmark, locate_suite
from tests.factories import bench_rows, save_bench


def test_a_suite_is_looked_for_under_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_bench(tmp_path / "data" / "piper", bench_rows(), manifest={"suite": "piper"})
    monkeypatch.chdir(tmp_path)
    bench = locate_suite("piper")
    assert (bench.name, bench.suite, bench.file) == ("piper", "piper", Path("data/piper/test.parquet"))


@pytest.mark.parametrize("data", ["elsewhere", "elsewhere/mine"])
def test_data_names_the_folder_of_suites_or_the_suites_own(tmp_path: Path, data: str) -> None:
    folder = tmp_path / "elsewhere" / ("ood" if data == "elsewhere" else "mine")
    save_bench(folder, bench_rows(), manifest={"suite": "ood"})
    bench = locate_suite("ood", tmp_path / data)
    assert bench.file == folder / "test.parquet"
    assert bench.suite == "ood"
    assert bench == replace(locate_benchmark(folder), suite="ood"), "same results for every spelling"


@pytest.mark.parametrize("manifest", [None, "{"])
def test_a_suite_without_a_readable_manifest_names_the_build_command(tmp_path: Path, manifest: str | None) -> None:
    if manifest is not None:
        (save_bench(tmp_path / "piper", bench_rows()) / "manifest.json").write_text(manifest)
    with pytest.raises(UserError, match="no readable manifest") as refused:
        locate_suite("piper", tmp_path)
    assert f"d2e data build --suite piper --out {tmp_path / 'piper'}" in str(refused.value)


@pytest.mark.parametrize(("held", "said"), [("ood", "holds suite 'ood'"), (None, "holds single datasets, no suite")])
def test_a_folder_of_something_else_is_refused(tmp_path: Path, held: str | None, said: str) -> None:
    save_bench(tmp_path / "piper", bench_rows(), manifest={"suite": held})
    with pytest.raises(UserError, match=said):
        locate_suite("piper", tmp_path)


def test_what_a_build_could_not_read_is_known(tmp_path: Path) -> None:
    save_bench(tmp_path / "piper", bench_rows(), manifest={"suite": "piper", "failures": {"timeqa": "missing"}})
    assert locate_suite("piper", tmp_path).lacking == ("timeqa",)


def test_a_file_is_named_after_its_folder_and_itself(tmp_path: Path) -> None:
    save_bench(tmp_path / "mini", bench_rows())
    assert locate_benchmark(tmp_path / "mini").name == "mini"
    assert locate_benchmark(tmp_path / "mini" / "test.parquet").name == "mini-test"
    with pytest.raises(UserError, match=r"holds neither test.parquet nor test.jsonl"):
        locate_benchmark(tmp_path)
