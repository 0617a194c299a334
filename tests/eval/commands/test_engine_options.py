"""Options that are for some engines only, given for another."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command import d2e
from tests.factories import bench_rows, save_bench


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    save_bench(tmp_path / "bench", bench_rows(2))
    return tmp_path / "bench"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--bench", "{bench}", "--tensor-parallel", "2"), "--tensor-parallel: not supported by --engine transf"),
        (("--bench", "{bench}", "--concurrency", "2"), "--concurrency: not supported by --engine transformers"),
        (("--bench", "{bench}", "--engine", "vllm", "--batch-size", "2"), "--batch-size: has no meaning with --engin"),
        (("--bench", "{bench}", "--engine", "vllm", "--base-url", "x"), "--base-url: not supported by --engine vl"),
        (("--bench", "{bench}", "--engine", "openai", "--dtype", "float32"), "--dtype: not supported by --engine "),
        (("--bench", "{bench}", "--base-url", "nowhere"), "expected http:// or https://"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_an_option_of_another_engine_is_refused(
    bench: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.setattr("d2e_sft.train.launch.accelerators", lambda: 0)
    filled = [argument.format(bench=bench) for argument in arguments]
    assert d2e("eval", "no/model", "--out", tmp_path / "run", *filled) == 1
    error = capsys.readouterr().err
    assert said in error
    assert error.count("error:") == 1
    assert not (tmp_path / "run").exists()
