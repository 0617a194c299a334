"""The attacks in their short form: what `make attack` tries many times, tried once or twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attack.frame import Attack, Attempt, NotPossibleHereError, attacks, run_attack, save, table

SHORT = [attack for attack in attacks() if attack.quick]


@pytest.mark.parametrize("attack", SHORT, ids=[attack.name.replace(" ", "-") for attack in SHORT])
def test_an_attack_does_no_harm(attack: Attack) -> None:
    outcome = run_attack(attack, attack.quick)
    if outcome.skipped:
        pytest.skip(outcome.skipped)
    assert not outcome.failed, "\n".join(outcome.failures)
    assert outcome.survived == outcome.tried >= attack.quick


def _odd_ones_fail(given: Attempt) -> int | None:
    assert given.world == "made once"
    assert not list(given.folder.iterdir())
    number = int(given.folder.name.rpartition("-")[2])
    if number % 2:
        raise SystemExit(number)
    return 3


def _not_here(given: Attempt) -> None:
    raise NotPossibleHereError("no such disk")


def test_what_is_tried_is_counted_and_the_page_shows_the_latest(tmp_path: Path) -> None:
    attack = Attack("odd", "frame", "nothing", _odd_ones_fail, prepare=lambda _: "made once")
    found = run_attack(attack, 4)
    assert (found.tried, found.survived, found.failed) == (8, 6, 2)
    assert "SystemExit: 1" in found.failures[0]
    skipped = run_attack(Attack("skip", "frame", "nothing", _not_here), 4)
    assert (skipped.tried, skipped.skipped) == (0, "no such disk")
    page, results = tmp_path / "page.md", tmp_path / "attack.json"
    page.write_text("before\n<!-- attacks: written by make attack -->of before<!-- end of attacks -->\nafter\n")
    save([found, skipped], "a test", results, page)
    save([run_attack(attack, 1)], "a test", results, page)
    text = page.read_text()
    assert "| odd | frame | nothing | 3 | 3 | 0 |" in text
    assert "not tried: no such disk" in text
    assert "of before" not in text
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert len(table([]).splitlines()) == 2
