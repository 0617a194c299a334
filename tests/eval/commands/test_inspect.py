"""`d2e inspect`: calls that make no sense."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command import refusal_of
from tests.factories import bench_rows, save_bench


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "expected either --bench, or --context and --question"),
        (("--context", "Rain fell."), "expected both, with text"),
        (("--bench", "{bench}", "--sample", "s33"), "--sample s33: no sample has this id"),
        (("--context", "Rain.", "--question", "What?", "--along", "gold"), "has no gold answer"),
    ],
)
def test_calls_that_make_no_sense_are_refused(tmp_path: Path, arguments: tuple[str, ...], problem: str) -> None:
    bench = save_bench(tmp_path / "bench", bench_rows(2))
    given = [argument.replace("{bench}", str(bench)) for argument in arguments]
    assert problem in refusal_of("inspect", "no/model", "--out", tmp_path / "p.html", *given)
