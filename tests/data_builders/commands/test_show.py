"""`d2e data show`: rows with their three views, in the terminal and as a page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from d2e_sft.cli import main
from data_builders.commands import data


def _run(*arguments: object) -> Result:
    result = CliRunner().invoke(data, ["show", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result


def test_rows_of_a_source_are_shown_refined_as_a_build_would(raw: Path) -> None:
    lines = _run("cider", "--raw", raw, "--rows", 2).output.splitlines()
    assert sum(line.startswith("cider-test-") for line in lines) == 2
    names = [line.split()[0] for line in lines if line[:1].isalpha() and not line.startswith("cider-test-")]
    assert names == ["question", "answer", "original", "imagined", "refined"] * 2
    assert lines[-1].endswith("rows of cider")
    assert max(map(len, lines)) <= 100


def test_a_row_is_found_by_its_id_and_its_options_are_numbered(raw: Path) -> None:
    text = _run("wiqa", "--raw", raw, "--split", "test", "--id", "wiqa-test-1").output
    assert text.startswith("wiqa-test-1 · test · counterfactual · scq\n")
    assert "options   - more\n          - less\n          - no effect\n" in text
    assert text.endswith("rows of wiqa\n")


def test_options_of_the_refiner_count(raw: Path) -> None:
    shown = [
        _run("tracie", "--raw", raw, "--rows", 99, f"refine.keep_events={keep}").output for keep in ("true", "false")
    ]
    assert shown[0].count("(the whole context)") >= shown[1].count("(the whole context)")


def test_a_folder_that_was_built_is_shown_and_a_page_is_written(built: Path, tmp_path: Path) -> None:
    assert "rows of" in _run(built, "--rows", 3).output
    assert f"wrote {tmp_path / 'rows.html'}" in _run(built, "--rows", 3, "--html", tmp_path / "rows.html").output
    assert (tmp_path / "rows.html").read_text("utf-8").count("<article") == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tracei"], "unknown dataset 'tracei'.*Did you mean 'tracie'"),
        (["cider", "--split", "train"], "cider: no row in train"),
        (["cider", "--id", "cider-test-nobody"], "--id: got 'cider-test-nobody'"),
    ],
)
def test_what_is_not_there_is_one_message(
    raw: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["data", "show", *arguments, "--raw", str(raw)])
    assert stopped.value.code == 1
    error = capsys.readouterr().err
    assert re.search(message, error), error


def test_a_built_folder_takes_no_options(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["data", "show", str(built), "refine.threshold=0.5"])
    assert "is built already; expected no KEY=VALUE" in capsys.readouterr().err
