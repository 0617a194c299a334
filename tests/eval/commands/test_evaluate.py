"""`d2e eval`: calls that make no sense are refused before anything is loaded."""

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
        ((), "expected either --bench or --suite, got neither"),
        (("--bench", "b", "--suite", "ood"), "expected either --bench or --suite, got both"),
        (("--bench", "{bench}", "--data", "d"), "--data d: is for suites and systems"),
        (
            ("--bench", "crep"),
            "benchmark 'crep': no such file or folder, and no system or suite. Did you mean 'crepe'?",
        ),
        (("--bench", "crep", "--set", "prompt=cot"), "Did you mean 'crepe'?"),
        (("--bench", "piper"), "Did you mean --suite 'piper'?"),
        (("--bench", "{bench}", "--demonstrations", "d"), "whose prompts show none; expected few_shot"),
        (("--bench", "{bench}", "--processes", "2"), "--processes 2: needs --launch"),
        (("--bench", "{bench}", "--launch", "zero3", "--processes", "2"), "every process gets a whole model"),
        (("--bench", "{bench}", "--launch", "ddp"), "say how many: --processes N"),
        (("--bench", "{bench}", "--launch", "ddp", "--engine", "vllm"), "use --tensor-parallel N"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_half_a_call_is_refused(
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
