"""Progress of long work: a bar in a terminal, lines in a log, nothing if that is asked for."""

from __future__ import annotations

import io
from types import SimpleNamespace
from weakref import WeakSet

import pytest

from d2e_sft.util import progress
from d2e_sft.util.progress import Progress
from d2e_sft.util.terminal import quietly, say


@pytest.fixture(autouse=True)
def no_other_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar that another test has left open would move these down a line."""
    monkeypatch.setattr(Progress, "_instances", WeakSet(), raising=False)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_gets_a_line_after_five_seconds_and_then_ever_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, log = SimpleNamespace(now=0.0), io.StringIO()
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: clock.now))
    with Progress(total=100, desc="reading", unit="row", mininterval=0, miniters=1, file=log) as bar:
        for second in range(1, 101):
            clock.now = float(second)
            bar.update()
    lines = log.getvalue().splitlines()
    assert [line.split(" [")[0] for line in lines] == [f"reading: {n:3}% {n}/100" for n in (5, 15, 35, 75)]
    assert "\r" not in log.getvalue()


def test_work_of_which_nothing_is_complete_shows_its_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, log = SimpleNamespace(now=0.0), io.StringIO()
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: clock.now))
    with Progress(total=8, desc="decoding", unit="sample", file=log) as bar:
        for second in range(8):
            clock.now = float(second)
            bar.set_postfix_str(f"{second} tokens/s", refresh=False)
            bar.update(0)
    [line] = log.getvalue().splitlines()
    assert line.startswith("decoding:   0% 0/8")
    assert line.endswith("5 tokens/s]")


@pytest.mark.parametrize("kind", ["quiet", "another process", "turned off"])
def test_nothing_is_shown_where_it_is_not_wanted(
    kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if kind == "another process":
        monkeypatch.setenv("RANK", "1")
    terminal = Terminal()
    with quietly(kind == "quiet"):
        assert list(Progress(range(3), file=terminal, disable=kind == "turned off")) == [0, 1, 2]
        say("a note")
    assert terminal.getvalue() == ""
    assert capsys.readouterr().out == ("" if kind == "quiet" else "a note\n")
