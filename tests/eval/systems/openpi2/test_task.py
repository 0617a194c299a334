"""The options of the benchmark, and what is asked of the official files."""

from __future__ import annotations

from eval.systems.openpi2.system import OPENPI2
from eval.systems.system import parse_options


def test_how_to_score_is_no_part_of_what_was_asked() -> None:
    options = parse_options(OPENPI2.options, ["task=states", "bertscore_model=any", "planner_seconds=3"], "openpi2")
    assert options.variant == "task=states", "so that answers are kept when a scorer is added"
