"""The solved procedures."""

from __future__ import annotations

from pathlib import Path

from eval.systems.crepe.family import drawn_demonstrations, load_demonstrations
from eval.systems.crepe.text_families import clause
from tests.eval.systems.crepe.perfect import say_level
from tests.eval.systems.crepe.procedures import run


def test_demonstrations_are_not_of_the_benchmark_and_agree_with_themselves(crepe_raw: Path) -> None:
    published = "".join(path.read_text(encoding="utf-8") for path in crepe_raw.glob("*.json"))
    for shown in load_demonstrations():
        for text in (shown.goal, *shown.steps, *(event.event for event in shown.events)):
            assert text not in published
        for event in shown.events:
            assert any(event.label(step) for step in range(1, len(shown.steps) + 1)), "something changes"
            assert all(
                (event.label(step) == 0) == (event.state_label(step) == 0) for step in range(1, len(shown.steps) + 1)
            )


def test_random_demonstrations_come_by_seed_and_by_event() -> None:
    def drawn(seed: int, *, by_event: bool) -> list[tuple[str, ...]]:
        return [
            tuple(event.event for event in shown.events) for shown in drawn_demonstrations(3, seed, by_event=by_event)
        ]

    assert drawn(4, by_event=True) == drawn(4, by_event=True)
    assert len({tuple(drawn(seed, by_event=True)) for seed in range(20)}) > 15
    assert all(len(set(drawn(seed, by_event=True))) == 3 for seed in range(20)), "no event twice"
    assert {len(events) for seed in range(5) for events in drawn(seed, by_event=True)} == {1}
    assert {len(events) for seed in range(5) for events in drawn(seed, by_event=False)} == {2}


def test_prompts_show_the_drawn_ones(tmp_path: Path) -> None:
    _, asker = run(tmp_path, say_level, prompt="text", demonstrations="random", seed=2)
    (first, *_) = drawn_demonstrations(3, 2, by_event=True)
    prompt = asker.passes[0][1][0].messages
    assert f"Goal: {first.goal}" in prompt[1]["content"]
    assert clause(first.events[0].event) in prompt[1]["content"]
    assert sum(message["role"] == "assistant" for message in prompt) == sum(
        len(shown.steps) for shown in drawn_demonstrations(3, 2, by_event=True)
    )
