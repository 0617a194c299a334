"""`d2e data show`: rows with their three views, in the terminal and as a page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.command import output_of, refusal_of


def test_rows_of_a_source_are_shown_refined_as_a_build_would(raw: Path) -> None:
    lines = output_of("data", "show", "cider", "--raw", raw, "--rows", 2).splitlines()
    assert sum(line.startswith("cider-test-") for line in lines) == 2
    names = [line.split()[0] for line in lines if line[:1].isalpha() and not line.startswith("cider-test-")]
    assert names == ["question", "answer", "original", "imagined", "refined"] * 2
    assert lines[-1].endswith("rows of cider")
    assert max(map(len, lines)) <= 100


def test_a_row_is_found_by_its_id_and_its_options_are_numbered(raw: Path) -> None:
    text = output_of("data", "show", "wiqa", "--raw", raw, "--split", "test", "--id", "wiqa-test-1")
    assert text.startswith("wiqa-test-1 · test · counterfactual · scq\n")
    assert "options   - more\n          - less\n          - no effect\n" in text
    assert text.endswith("rows of wiqa\n")


def test_options_of_the_refiner_count(raw: Path) -> None:
    shown = [
        output_of("data", "show", "tracie", "--raw", raw, "--rows", 99, f"refine.keep_events={keep}")
        for keep in ("true", "false")
    ]
    assert shown[0].count("(the whole context)") >= shown[1].count("(the whole context)")


def test_a_folder_that_was_built_is_shown_and_a_page_is_written(built: Path, tmp_path: Path) -> None:
    assert "rows of" in output_of("data", "show", built, "--rows", 3)
    assert f"wrote {tmp_path / 'rows.html'}" in output_of(
        "data", "show", built, "--rows", 3, "--html", tmp_path / "rows.html"
    )
    assert (tmp_path / "rows.html").read_text("utf-8").count("<article") == 3
    assert "is built already; expected no KEY=VALUE" in refusal_of("data", "show", built, "refine.threshold=0.5")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["data/nosuch"], "data/nosuch: no such file or folder"),
        (["tracei"], "unknown dataset 'tracei'.*Did you mean 'tracie'"),
        (["cider", "--split", "train"], "cider: no row in train"),
        (["cider", "--id", "cider-test-nobody"], "--id: got 'cider-test-nobody'"),
    ],
)
def test_unknown_rows_are_one_message(raw: Path, arguments: list[str], message: str) -> None:
    assert re.search(message, refusal_of("data", "show", *arguments, "--raw", raw))
