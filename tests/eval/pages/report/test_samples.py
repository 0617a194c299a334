"""Which samples are shown in full."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from eval.compare.runs import load_runs
from eval.pages.report.page import render_page
from eval.pages.report.samples import choose_samples
from tests.factories import choice, make_run, prediction

HISTORY = [
    {"step": step, "loss": 2.0 / step, "ce": 1.5 / step, "kl": 0.5 / step, "tokens_per_second": 100.0 * step}
    for step in (1, 2, 3)
]

ATTACK = "<script>alert('x')</script>"


def without_scripts(page: str) -> str:
    """What a reader whose browser runs no scripts has."""
    return re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)


def data_of(page: str) -> dict[str, Any]:
    """The data of the sample browser, as a browser takes it out of the page."""
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', page, flags=re.DOTALL)
    assert found is not None
    content: dict[str, Any] = json.loads(found[1])
    return content


def three_runs(folder: Path) -> list[Path]:
    """A base model, and two runs of which the second has samples 1 and 2 mended and sample 3 broken."""
    rows = {
        "base": [True, False, False, True],
        "sft_$x$": [True, True, False, False],
        "_d2e": [True, True, True, False],
    }
    base, *tuned = (
        make_run(
            folder / name,
            [*(prediction(n, right) for n, right in enumerate(marks)), choice(9, False, output=f"{ATTACK} {name}")],
            recipe=None if name == "base" else f"model: {name}  # {ATTACK}",
            history=None if name == "base" else HISTORY,
        )
        for name, marks in rows.items()
    )
    return [base, *tuned]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return render_page(load_runs(three_runs(tmp_path_factory.mktemp("runs"))))


def test_outcomes_take_turns_and_groups_take_turns_within_them(tmp_path: Path) -> None:
    before = [prediction(n, right) for n, right in enumerate([False, False, True, True, True])]
    after = [prediction(n, right) for n, right in enumerate([True, True, True, False, True])]
    runs = load_runs(
        [
            make_run(tmp_path / "before", [*before, choice(9, False)]),
            make_run(tmp_path / "after", [*after, choice(9, True)]),
        ]
    )
    chosen = [(shown.outcome.split()[0], shown.sample.id) for shown in choose_samples(runs, 5)]
    assert chosen == [("mended", "s0"), ("broken", "s3"), ("right", "s2"), ("mended", "s9"), ("right", "s4")]
    assert choose_samples(runs, 99) == choose_samples(runs, 6)
    assert choose_samples(runs, 0) == []


def test_an_endless_output_is_cut(tmp_path: Path) -> None:
    endless = choice(1, False, output="again " * 2_000, answer=["again " * 2_000], extraction="none")
    page = render_page(load_runs([make_run(tmp_path / "base", [endless])]))
    for part in (without_scripts(page), json.dumps(data_of(page))):
        assert part.count("again") < 600, "output and answer, each cut"
        assert "more characters)" in part
