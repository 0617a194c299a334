"""The verdicts that a comparison ends with."""

from __future__ import annotations

from pathlib import Path

from eval.compare.compare import compare_runs
from eval.compare.runs import load_runs
from eval.compare.verdicts import mean_verdicts, terminal_text
from tests.eval.compare.test_tables import compared
from tests.factories import make_run, prediction


def test_a_verdict_says_higher_or_not_decided_and_one_run_has_none(tmp_path: Path) -> None:
    (line,) = mean_verdicts(compared(tmp_path, "base", "better"))
    assert line.startswith("better against base: mean +33.3 [")
    assert line.endswith("p <0.001: higher with 120 samples")
    rows = [prediction(n, n % 2 == 0) for n in range(20)]
    runs = [make_run(tmp_path / name, rows) for name in ("one", "two")]
    (line,) = mean_verdicts(compare_runs(load_runs(runs)))
    assert line.endswith("not decided with 20 samples")
    alone = compare_runs(load_runs(runs[:1]))
    assert mean_verdicts(alone) == []
    assert "Δ" not in terminal_text(alone)
