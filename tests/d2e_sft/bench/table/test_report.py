"""The table's file: resumed after a failure, replaced once it is complete; the page that gets the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from d2e_sft.bench.cost import Cost
from d2e_sft.bench.table import report
from d2e_sft.bench.table.row import REHEARSAL, Bench, Row, compared
from tests.command import call, refusal_of

Part = Callable[[Bench], Iterator[Row]]


def fake(calls: list[str], name: str, *, fails: bool = False) -> Part:
    def part(bench: Bench) -> Iterator[Row]:
        calls.append(name)
        if fails and calls.count(name) == 1:
            raise RuntimeError("no memory for this")
        yield compared(f"a {name}", [Cost(1, 2, 10), Cost(1, 4, 10)], "a loop", [Cost(1, 4), Cost(1, 4)], each=2)

    return part


def test_a_table_is_resumed_after_a_failure_and_replaced_once_it_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    fakes = {"one": fake(calls, "one"), "two": fake(calls, "two", fails=True), "three": fake(calls, "three")}
    monkeypatch.setattr(report, "PARTS", fakes)
    bench = Bench("m", REHEARSAL, tmp_path, lambda name: None)
    first = report.bench_all(bench, 1)
    assert calls == ["one", "two", "three"]
    assert first.skipped == {"two": "failed: RuntimeError: no memory for this"}
    assert not first.is_complete
    second = report.bench_all(bench, 1)
    assert calls == ["one", "two", "three", "two"]
    assert second.is_complete
    assert not second.skipped
    (row,) = second.rows["two"]
    assert (row["ours"]["cpu_s"], row["theirs"]["cpu_s"], row["ratio"]) == (1.5, 2, 0.75)
    report.bench_all(bench, 1)
    assert calls[4:] == ["one", "two", "three"]
    again = report.bench_all(bench, 1, ["two"])
    assert calls[7:] == ["two"]
    assert again.is_complete
    other = Bench("another", REHEARSAL, tmp_path, lambda name: None)
    assert report.bench_all(other, 0).skipped["one"] == "the 0 minutes were over"
    assert calls[8:] == []
    shown = report.as_table(second)
    assert "Not measured" not in shown.terminal()
    assert shown.markdown().count("| a one") == 1


def test_an_unknown_part_is_refused(tmp_path: Path) -> None:
    said = refusal_of("bench", "all", "--out", tmp_path, "--parts", "trainings").replace("\n", " ")
    assert "--parts trainings" in said
    assert "Did you mean 'training'" in said
    assert not call("bench", "all", "--help").status
