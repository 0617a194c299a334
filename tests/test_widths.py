"""No line of a command is wider than a terminal of 100 columns: every verb's help, and what verbs print."""

from __future__ import annotations

from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path

import pytest
from click.testing import CliRunner

from d2e_sft import cli
from d2e_sft.util.terminal import WIDTH
from tests.command import d2e, output_of, verbs
from tests.eval.compare.rows import accuracy, save_result
from tests.eval.paper_runs import run
from tests.eval.systems.cases import WITHOUT_PLANNER, save_answers, save_gold

ROOT = Path(__file__).resolve().parents[1]
LONG = "a-run-whose-name-is-longer-than-any-column-of-a-table-should-be"


def too_wide(text: str) -> list[str]:
    return [line for line in text.splitlines() if len(line) > WIDTH]


def test_the_help_of_every_verb() -> None:
    assert len(verbs()) > 30
    wide = {path: too_wide(CliRunner().invoke(cli.d2e, [*path, "--help"]).output) for path in verbs()}
    assert not any(wide.values()), wide


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch) -> None:
    """No width is given, as where a command's output is piped."""
    monkeypatch.delenv("COLUMNS")


def complaint(words: tuple[str, ...], *more: str | Path) -> str:
    """What a wrong call of a verb says, as the command line shows it."""
    with pytest.raises(SystemExit) as stop, redirect_stderr(StringIO()) as said:
        cli.main([*words, *map(str, more)])
    assert stop.value.code in (1, 2), words
    return said.getvalue()


@pytest.mark.usefixtures("piped")
def test_errors_of_every_verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An option that there is not, a file that is missing, and what the verb asks for left out."""
    monkeypatch.chdir(tmp_path)  # nothing is found there
    unknown, lacking = f"--{LONG}-{LONG}", tmp_path / LONG / LONG
    for path, command in verbs().items():
        said = complaint(path, unknown, lacking)
        assert "rror: " in said, path
        assert not [line for line in too_wide(said) if len(line.split()) > 1], said
        if any(parameter.required for parameter in command.params):
            said = complaint(path)
            assert "Error: Missing" in said, path
            assert not too_wide(said), said


@pytest.mark.usefixtures("piped")
def test_scores_of_every_system(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in WITHOUT_PLANNER:
        system, *given = name.split()
        gold = save_gold(tmp_path, name)
        said = save_answers(tmp_path / f"{LONG}-{name}.csv", name, gold)
        assert d2e("score", system, said, "--gold", gold, *(part for one in given for part in ("--set", one))) == 0
        assert not too_wide(capsys.readouterr().out), name


@pytest.mark.usefixtures("piped")
def test_runs_with_long_names_are_compared_and_laid_out(tmp_path: Path) -> None:
    rows = [run(tmp_path / f"{LONG}-{number}") for number in range(3)]
    system = [save_result(tmp_path / f"{LONG}-s{n}", accuracy([1, 0, n, 1]), bench="boxes") for n in range(2)]
    for verb, runs in (("table", rows), ("compare", system), ("table", system)):
        printed = output_of(verb, *runs)
        assert printed
        assert not too_wide(printed.replace(str(tmp_path), "")), verb
