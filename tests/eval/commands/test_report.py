"""`d2e report` refuses calls that make no sense before it writes anything."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from d2e_sft.util.errors import UserError
from eval.commands.report import report
from tests.eval.fake_runs import make_run, prediction


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--no-texts-of", "storys"], "--no-texts-of storys: no dataset of the benchmark.* Did you mean 'stories'"),
        (["--no-texts", "--no-texts-of", "stories"], "expected it without --no-texts-of"),
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
