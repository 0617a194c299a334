"""The solved procedures."""

from __future__ import annotations

from pathlib import Path

from eval.systems.crepe.demonstrations import load_demonstrations


def test_demonstrations_are_not_of_the_benchmark_and_agree_with_themselves(official: Path) -> None:
    published = "".join(path.read_text(encoding="utf-8") for path in official.glob("*.json"))
    for shown in load_demonstrations():
        for text in (shown.goal, *shown.steps, *(event.event for event in shown.events)):
            assert text not in published
        for event in shown.events:
            assert any(event.label(step) for step in range(1, len(shown.steps) + 1)), "something changes"
            assert all(
                (event.label(step) == 0) == (event.state_label(step) == 0) for step in range(1, len(shown.steps) + 1)
            )
