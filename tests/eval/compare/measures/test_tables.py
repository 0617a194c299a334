"""Comparisons as text: narrow, Markdown, LaTeX, verdicts."""

from __future__ import annotations

from eval.compare.measures.comparison import compare_measures
from eval.compare.measures.tables import latex_table, markdown_text, narrow_text, verdicts
from tests.eval.compare.measures.results import accuracy

RIGHT = [1.0] * 30 + [0.0] * 10
WRONG = [1.0] * 10 + [0.0] * 30
FOUND = compare_measures("wiqa", {"a_1": accuracy(WRONG), "b & c": accuracy(RIGHT)})


def test_a_block_a_measure_and_a_verdict() -> None:
    lines = narrow_text(FOUND).splitlines()
    start = lines.index("accuracy (40)")
    assert lines[start + 1].split() == ["a_1", *lines[start + 1].split()[1:]]
    assert "25.0" in lines[start + 1]
    assert "75.0" in lines[start + 2]
    assert "+50.0" in lines[start + 2]
    assert lines[-1].startswith("b & c against a_1: accuracy +50.0 [")
    assert lines[-1].endswith("p <0.001: higher with 40 questions")


def test_what_is_not_decided_is_called_so() -> None:
    found = compare_measures("wiqa", {"a": accuracy(RIGHT), "b": accuracy([*RIGHT[1:], 1.0])})
    assert verdicts(found)[0].endswith("not decided with 40 questions")


def test_no_line_is_wider_than_a_terminal_whatever_the_names() -> None:
    name = "a-run-whose-name-is-longer-than-any-column-should-be"
    found = compare_measures("wiqa", {f"{name}-1": accuracy(WRONG), f"{name}-2": accuracy(RIGHT)})
    assert max(map(len, narrow_text(found).splitlines())) <= 100


def test_one_result_has_scores_alone() -> None:
    text = narrow_text(compare_measures("wiqa", {"a": accuracy(RIGHT)}))
    assert "Δ" not in text
    assert "against" not in text


def test_markdown_has_a_column_a_measure() -> None:
    text = markdown_text(FOUND)
    assert "accuracy (n = 40)" in text
    assert "| b & c | 75.0 [" in text
    assert "| Δ to a_1 |" in text


def test_latex_marks_the_best_and_the_significant() -> None:
    lines = latex_table(FOUND).splitlines()
    [row] = [line for line in lines if line.startswith(r"b \& c &")]
    assert r"\textbf{75.0}\textsuperscript{\dag}" in row
    [first] = [line for line in lines if line.startswith(r"a\_1 &")]
    assert r"\textbf" not in first
    assert [line.count("&") for line in (lines[6], row.replace(r"\&", ""))] == [1, 1]


def test_nothing_is_best_where_all_are_equal() -> None:
    found = compare_measures("wiqa", {"a": accuracy(RIGHT), "b": accuracy(RIGHT)})
    assert r"\textbf" not in latex_table(found)
