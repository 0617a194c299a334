"""Score tables are Markdown, and the collapse of an nli model to one label is seen in them at a glance."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from eval.commands.compare import compare
from eval.compare.tables import collapse_warning, share_bar, shares_in_percent
from eval.score.predictions import Prediction
from tests.factories import make_run, prediction

GOLD = {"positive": 0.5, "negative": 0.5}


def says(positive: int, negative: int, neither: int = 0) -> list[Prediction]:
    """So many predictions of each label; of the samples, every other one is positive."""
    answers = ["positive"] * positive + ["negative"] * negative + [""] * neither
    return [
        prediction(
            number,
            (answer == "positive") == (number % 2 == 0) and bool(answer),
            gold=["positive" if number % 2 == 0 else "negative"],
            answer=[answer] if answer else [],
            extraction="strict" if answer else "none",
        )
        for number, answer in enumerate(answers)
    ]


@pytest.mark.parametrize(
    ("shares", "bar"),
    [
        ({"positive": 1.0, "negative": 0.0, "other": 0.0}, "█" * 20),
        ({"positive": 0.5, "negative": 0.25, "other": 0.25}, "█" * 10 + "░" * 5 + "·" * 5),
        ({"positive": 1 / 3, "negative": 1 / 3, "other": 1 / 3}, "█" * 7 + "░" * 6 + "·" * 7),
        (GOLD, "█" * 10 + "░" * 10),
    ],
)
def test_a_bar_is_always_20_characters_long(shares: dict[str, float], bar: str) -> None:
    assert share_bar(shares) == bar


def test_shares_are_in_percent_and_gold_has_no_third() -> None:
    assert shares_in_percent({"negative": 0.008, "positive": 0.992, "other": 0.0}) == "99.2 / 0.8 / 0.0"
    assert shares_in_percent(GOLD) == "50.0 / 50.0"


def test_one_label_for_nearly_all_is_a_warning_unless_it_is_the_gold_one() -> None:
    collapsed = {"positive": 0.02, "negative": 0.96, "other": 0.02}
    warning = collapse_warning("tracie (temporal)", collapsed, GOLD, 1_000)
    assert warning is not None
    assert warning.startswith(
        "WARNING tracie (temporal): collapsed to one label: 96.0 % of 1,000 answers are 'negative'"
    )
    assert "50.0 %" in warning
    assert collapse_warning("tracie", collapsed, {"positive": 0.04, "negative": 0.96}, 1_000) is None
    assert collapse_warning("tracie", {"positive": 0.06, "negative": 0.94, "other": 0.0}, GOLD, 1_000) is None
    assert collapse_warning("tracie", collapsed, GOLD, 9) is None, "nine answers may agree by chance"


def test_compare_names_the_run_that_collapsed(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / "sft", says(40, 0)), make_run(tmp_path / "d2e", says(21, 19))]
    output = CliRunner().invoke(compare, [str(run) for run in runs], catch_exceptions=False).output
    assert "WARNING sft, stories (temporal): collapsed" in output
    assert output.count("WARNING") == 1


def output_of(*arguments: object) -> str:
    result = CliRunner().invoke(compare, ["--wide", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def cells(output: str, start: str) -> list[list[str]]:
    """The cells of all table rows that begin with `start`."""
    lines = [line for line in output.splitlines() if line.startswith(f"| {start} ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_tables_are_markdown_and_never_wrap(tmp_path: Path) -> None:
    long = "d" * 150
    runs = [make_run(tmp_path / name, [prediction(1, True, dataset=long)]) for name in ("a[b]|c" * 10, "second")]
    lines = output_of(*runs).splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert sum(long in line for line in table) == 3
    assert "a[b]\\|c" in table[0]
    assert set(table[1]) == set("|-")
    assert all(line == line.rstrip() or line.startswith("|") for line in lines)
