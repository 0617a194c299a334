"""Error patterns on the report: counted as `d2e errors` found them, and never about other answers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from d2e_sft.util.errors import UserError
from d2e_sft.util.files import with_checksums, write_json
from eval.compare.judged import read_patterns
from eval.compare.runs import load_runs
from eval.pages.report.page import render_page
from eval.pages.report.patterns import pattern_table
from tests.command import output_of
from tests.factories import choice, make_run, prediction

NEGLECT, PLACE, OTHER = "neglect_context", "inaccurate_position", "other"


def sealed(errors: list[dict[str, Any]]) -> str:
    """The text of a file of patterns."""
    return json.dumps(with_checksums({"judge": {"backend": "x"}, "estimated_by_rule": True, "errors": errors}))


def run_with(folder: Path, found: dict[str, str] | None, *, by_rule: bool = False, **content: Any) -> Path:
    """A run with one right answer and wrong ones s1, s2 (temporal) and s3 (causal), and their patterns."""
    run = make_run(folder, [prediction(0, True), prediction(1, False), prediction(2, False), choice(3, False)])
    if found is not None:
        dataset = {"s1": "stories", "s2": "stories", "s3": "kitchen"}
        errors = [
            {"dataset": dataset.get(name, "stories"), "id": name, "pattern": pattern, "reason": f"<i>why {name}</i>"}
            for name, pattern in found.items()
        ]
        judge = {"backend": "rules", "model": None} if by_rule else {"backend": "openai", "model": "judge-1"}
        written = {"judge": judge, "estimated_by_rule": by_rule, "errors": errors, **content}
        write_json(run / "eval/mini/error_patterns.json", with_checksums(written))
    return run


def test_patterns_are_counted_by_relation_and_run(tmp_path: Path) -> None:
    paths = [
        run_with(tmp_path / "a", {"s1": NEGLECT, "s2": NEGLECT, "s3": PLACE}),
        run_with(tmp_path / "b", {"s1": OTHER, "s2": NEGLECT, "s3": NEGLECT}),
    ]
    runs = load_runs(paths)
    table = pattern_table(runs, {run.label: found for run in runs if (found := read_patterns(run))})
    rows = {(relation, row[0]): row[1:] for relation, own in table.blocks() for row in own}
    assert list(rows) == [(relation, run) for relation in ("temporal", "causal", "all") for run in "ab"]
    assert rows["temporal", "a"] == ["2 (66.7 % of 3)", "100.0 % (2)", *["0.0 % (0)"] * 3]
    assert rows["causal", "b"] == ["1 (100.0 % of 1)", "100.0 % (1)", *["0.0 % (0)"] * 3]
    assert rows["all", "b"] == ["3 (75.0 % of 4)", "66.7 % (2)", "0.0 % (0)", "33.3 % (1)", "0.0 % (0)"]
    page = render_page(runs)
    assert "Stacked bars: shares of error patterns by relation of a, b" in page
    assert "a: by the judge judge-1" in page
    assert "do not compare" not in page
    assert "Not known yet" not in page
    assert "<i>why" not in page, "a reason is text"
    assert "why s1" in page
    by_rule = run_with(tmp_path / "rule", {"s1": NEGLECT, "s2": NEGLECT, "s3": PLACE}, by_rule=True)
    page = render_page(load_runs([paths[0], by_rule]))
    assert "rule: estimated by rule" in page
    assert "do not compare them" in page


def test_a_run_without_patterns_is_named_and_the_command_says_how_to_get_them(tmp_path: Path) -> None:
    paths = [run_with(tmp_path / "a", {"s1": NEGLECT, "s2": NEGLECT, "s3": PLACE}), run_with(tmp_path / "b", None)]
    lines = output_of("report", *paths, "--out", tmp_path / "report.html").splitlines()
    page = (tmp_path / "report.html").read_text()
    assert "Not known for b." in page
    assert "d2e errors" not in page, "what is to be done stands in the terminal, not on a page to pass on"
    told = lines.index("without error patterns; to find those of b by rule first:")
    without, find = lines[told + 1 : told + 3]
    assert re.fullmatch(rf"  d2e eval .* --out {tmp_path}/b --without-context", without)
    assert find == f"  d2e errors {tmp_path}/b --bench mini"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "not error patterns"),
        ("[]", "not error patterns"),
        ("{}", "has no checksums"),
        (sealed([{}]), "errors.0.dataset: missing"),
        (sealed([]), "about 0 wrong answers, .* holds 3"),
        (sealed([]).replace("true", "false"), "was changed after it was written"),
    ],
)
def test_a_damaged_file_or_one_of_other_answers_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    run = run_with(tmp_path / "run", {})
    file = run / "eval/mini/error_patterns.json"
    file.write_text(text)
    with pytest.raises(UserError, match=problem) as error:
        render_page(load_runs([run]))
    assert str(file) in str(error.value)
    assert f"d2e errors {run} --bench mini" in str(error.value)
    run = run_with(tmp_path / "right", {"s1": OTHER, "s2": OTHER, "s3": OTHER, "s0": OTHER})
    with pytest.raises(UserError, match=r"1 are in one only, such as 's0' of stories"):
        render_page(load_runs([run]))
