"""`d2e report` refuses calls that make no sense before it writes anything."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from d2e_sft.util.errors import UserError
from eval.commands.report import report
from tests.command import d2e
from tests.factories import make_run, prediction


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--no-texts-of", "storys"], "--no-texts-of storys: not a dataset of the benchmark.* Did you mean 'stories'"),
        (["--no-texts", "--no-texts-of", "stories"], "expected no --no-texts-of"),
    ],
)
def test_options_that_make_no_sense_are_refused(tmp_path: Path, arguments: list[str], message: str) -> None:
    run, out = make_run(tmp_path / "run", [prediction(1, True)]), tmp_path / "p.html"
    result = CliRunner().invoke(report, [str(run), "--out", str(out), *arguments])
    assert isinstance(result.exception, UserError)
    assert re.search(message, str(result.exception))
    assert not out.exists()


def test_a_run_without_results_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = CliRunner().invoke(report, [str(tmp_path / "empty"), "--out", str(tmp_path / "p.html")])
    assert isinstance(result.exception, UserError)
    assert f"{tmp_path / 'empty'}: the run has no scores" in str(result.exception)


def test_its_output_ends_with_a_verdict_for_each_pair(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {"base": 0, "sft": 1, "d2e": 2}
    runs = [
        make_run(tmp_path / name, [prediction(n, n % 3 <= place) for n in range(60)]) for name, place in rows.items()
    ]
    out = tmp_path / "p.html"
    assert d2e("report", *runs, "--out", out) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].startswith("sft against base: mean +33.3 [")
    assert lines[-1].startswith("d2e against base: mean +66.7 [")
    assert d2e("report", *runs, "--out", out, "--reference", "sft") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].startswith("base against sft: mean -33.3 [")
    assert "base against sft: mean -33.3" in out.read_text(encoding="utf-8")
    assert d2e("report", *runs, "--out", out, "--reference", "sf") == 1
