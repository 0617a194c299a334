"""Flat predictions for CREPE: null is counted, and lines that do not fit are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from d2e_sft.util.errors import UserError
from eval.systems.crepe.gold import read_procedures
from eval.systems.flat.crepe import read_flat, template
from eval.systems.flat.lines import Line, write_lines
from tests.eval.systems.crepe.procedures import GOLD, save


@pytest.fixture
def lines(tmp_path: Path) -> list[Line]:
    return [{**row, "change": "more likely"} for row in template(read_procedures(save(tmp_path / "gold.json", GOLD)))]


def read(folder: Path, lines: list[Line]) -> Any:
    file = folder / "p.jsonl"
    file.write_text(write_lines(file, lines), encoding="utf-8")
    return read_flat(file, read_procedures(folder / "gold.json"))


def test_null_is_equally_likely_and_counted(tmp_path: Path, lines: list[Line]) -> None:
    lines[0]["change"], lines[1]["change"] = None, "equally likely"
    procedures, unread = read(tmp_path, lines)
    changes = sum(len(block.predicted_events) for procedure in procedures for block in procedure.blocks)
    assert (unread, changes) == (1, len(lines) - 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"change": "more"}, "line 1: change: got 'more'; expected one of equally likely, less likely, more likely"),
        ({"step": 99}, "line 1: step: got '99'; expected a whole number from 1 to"),
        ({"procedure": "none"}, "procedure 'none' is not in the gold file"),
        ({"event": "It rains."}, "event 'It rains.' is none of procedure"),
    ],
)
def test_a_line_that_does_not_fit_is_named(
    tmp_path: Path, lines: list[Line], change: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        read(tmp_path, [{**lines[0], **change}, *lines[1:]])


def test_a_pair_must_be_there_once(tmp_path: Path, lines: list[Line]) -> None:
    with pytest.raises(UserError, match="predicted twice"):
        read(tmp_path, [*lines, lines[0]])
    with pytest.raises(UserError, match=r"lacks step 1 and event .* \(1 such\)"):
        read(tmp_path, lines[1:])
    with pytest.raises(UserError, match="lacks any pair"):
        read(tmp_path, [])
