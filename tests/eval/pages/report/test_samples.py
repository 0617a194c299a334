"""Which samples are shown in full."""

from __future__ import annotations

import json
from pathlib import Path

from eval.compare.runs import load_runs
from eval.pages.report.page import render_page
from eval.pages.report.samples import choose_samples
from tests.eval.pages.report.test_browser import data_of
from tests.eval.pages.report.test_page import without_scripts
from tests.factories import choice, make_run, prediction


def test_changed_samples_come_first_and_outcomes_and_groups_take_turns(tmp_path: Path) -> None:
    before = [prediction(n, right) for n, right in enumerate([False, False, True, True, True])]
    after = [prediction(n, right) for n, right in enumerate([True, True, True, False, True])]
    rows = {"before": [*before, choice(9, False)], "after": [*after, choice(9, True)]}
    runs = load_runs([make_run(tmp_path / name, own) for name, own in rows.items()])
    chosen = [(shown.outcome.split()[0], shown.sample.id) for shown in choose_samples(runs, 5)]
    assert chosen == [("fixed", "s0"), ("broken", "s3"), ("fixed", "s9"), ("fixed", "s1"), ("right", "s2")]
    in_turn = [shown.outcome.split()[0] for shown in choose_samples(runs, 4, changed_first=False)]
    assert in_turn == ["fixed", "broken", "right", "fixed"]
    assert choose_samples(runs, 99) == choose_samples(runs, 6)
    assert choose_samples(runs, 0) == []


def test_an_endless_output_is_cut(tmp_path: Path) -> None:
    endless = choice(1, False, output="again " * 2_000, answer=["again " * 2_000], extraction="none")
    page = render_page(load_runs([make_run(tmp_path / "base", [endless])]))
    for part in (without_scripts(page), json.dumps(data_of(page))):
        assert part.count("again") < 600, "output and answer, each cut"
        assert "more characters)" in part
