"""`d2e report` refuses calls that make no sense before it writes anything, and loads neither torch nor matplotlib."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command import output_of, refusal_of
from tests.factories import make_run, prediction


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--no-texts-of", "storys"], "--no-texts-of storys: not a dataset of the benchmark.* Did you mean 'stories'"),
        (["--no-texts", "--no-texts-of", "stories"], "expected no --no-texts-of"),
        (["."], "the run has no scores"),
    ],
)
def test_a_call_that_makes_no_sense_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    run, out = make_run(tmp_path / "run", [prediction(1, True)]), tmp_path / "p.html"
    assert re.search(message, refusal_of("report", run, "--out", out, *arguments))
    assert not out.exists()


def test_its_output_ends_with_a_verdict_for_each_pair(tmp_path: Path) -> None:
    rows = {"base": 0, "sft": 1, "d2e": 2}
    runs = [
        make_run(tmp_path / name, [prediction(n, n % 3 <= place) for n in range(60)]) for name, place in rows.items()
    ]
    out = tmp_path / "p.html"
    lines = output_of("report", *runs, "--out", out).splitlines()
    assert lines[-2].startswith("sft against base: mean +33.3 [")
    assert lines[-1].startswith("d2e against base: mean +66.7 [")
    lines = output_of("report", *runs, "--out", out, "--reference", "sft").splitlines()
    assert lines[-2].startswith("base against sft: mean -33.3 [")
    assert "base against sft: mean -33.3" in out.read_text(encoding="utf-8")
    refusal_of("report", *runs, "--out", out, "--reference", "sf")


def test_the_verbs_load_without_torch_or_matplotlib() -> None:
    code = (
        "import sys, eval.commands.compare, eval.commands.report; "
        "print([name for name in ('torch', 'matplotlib') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
