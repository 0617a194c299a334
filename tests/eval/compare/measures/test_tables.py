"""A comparison by measures as a table, in LaTeX, and its verdicts."""

from __future__ import annotations

from d2e_sft.util.table import Table
from eval.compare.measures.measure import compare_measures
from eval.compare.measures.tables import measure_table, measure_verdicts, measures_latex, measures_text
from tests.eval.compare.measures.results import accuracy

RIGHT = [1.0] * 30 + [0.0] * 10
WRONG = [1.0] * 10 + [0.0] * 30
FOUND = compare_measures("wiqa", {"a_1": accuracy(WRONG), "b & c": accuracy(RIGHT)})


def test_a_measure_is_a_block_and_a_verdict_follows() -> None:
    (name, (first, second)), *_ = measure_table(FOUND).blocks()
    assert (name, first[0], second[0]) == ("accuracy (40)", "a_1", "b & c")
    assert first[1].startswith("25.0 [")
    assert second[1].startswith("75.0 [")
    assert second[2].startswith("+50.0 [")
    verdict = measures_text(FOUND, Table.markdown).splitlines()[-1]
    assert verdict.startswith("b & c against a_1: accuracy +50.0 [")
    assert verdict.endswith("p <0.001: higher with 40 questions")
    undecided = compare_measures("wiqa", {"a": accuracy(RIGHT), "b": accuracy([*RIGHT[1:], 1.0])})
    assert measure_verdicts(undecided)[0].endswith("not decided with 40 questions")
    alone = measures_text(compare_measures("wiqa", {"a": accuracy(RIGHT)}), Table.terminal)
    assert not {"Δ", "against"} & set(alone.split()), "one result has scores, but no differences"


def test_latex_marks_the_best_and_the_significant() -> None:
    lines = measures_latex(FOUND).splitlines()
    [row] = [line for line in lines if line.startswith(r"b \& c &")]
    assert r"\textbf{75.0}\textsuperscript{\dag} {\scriptsize $\pm$" in row
    [first] = [line for line in lines if line.startswith(r"a\_1 &")]
    assert r"\textbf" not in first
    equal = compare_measures("wiqa", {"a": accuracy(RIGHT), "b": accuracy(RIGHT)})
    assert r"\textbf" not in measures_latex(equal)
