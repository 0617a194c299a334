"""Every family of prompts, answered by a perfect model and by an unreadable one; and the solved procedures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eval.systems.crepe.code_style import snake
from eval.systems.crepe.family import drawn_demonstrations, load_demonstrations
from eval.systems.crepe.system import FAMILIES
from eval.systems.crepe.text_families import clause
from tests.eval.systems.crepe.perfect import FROM_FIRST, STEPS, rule_of, say_level
from tests.eval.systems.crepe.procedures import GOLD, last, run
from tests.eval.systems.files import save

PAIRS = [(p, e) for p, f in FAMILIES.items() for e in f.entities]
FORMS = [
    *((prompt, entities, "official") for prompt, entities in PAIRS),
    *((prompt, entities, "independent") for prompt, entities in PAIRS if FAMILIES[prompt].by_step),
]


def asked(folder: Path, say: Any, prompt: str, entities: str, structure: str, **options: Any) -> Any:
    """Ask `say` by a form of prompt; predicted states come from a file."""
    if entities == "predicted":
        states = {"3": {"1": [{"entity": "kettle", "attribute": "hot", "change": "more likely"}]}, "5": {}}
        options["entities_file"] = save(folder / "states.json", states)
    return run(folder / "data", say, prompt=prompt, entities=entities, structure=structure, **options)


@pytest.mark.parametrize(("prompt", "entities", "structure"), FORMS)
def test_a_model_that_is_always_right_scores_one_where_the_first_step_can_be_told(
    tmp_path: Path, prompt: str, entities: str, structure: str
) -> None:
    result, _ = asked(tmp_path, rule_of(prompt, entities, structure), prompt, entities, structure, shots=0)
    assert result.scores["unparsed"] == {"share": 0.0, "pairs": 0}
    if structure == "official" and prompt in FROM_FIRST:
        # Two pairs of the first step change.
        assert result.scores["confusion"] == [[4, 0, 0], [1, 1, 0], [1, 0, 1]]
    else:
        assert result.scores["macro_f1"] == result.scores["corrected"]["macro_f1"] == 1


@pytest.mark.parametrize(("prompt", "entities", "structure"), FORMS)
def test_unreadable_replies_are_no_change_and_the_imagined_view_has_no_step_and_no_state(
    tmp_path: Path, prompt: str, entities: str, structure: str
) -> None:
    result, asker = asked(tmp_path, lambda _: "Hm?", prompt, entities, structure, shots=1)
    assert result.scores["unparsed"] == {"share": 1.0, "pairs": 8}
    assert result.scores["macro_f1"] == result.scores["baselines"]["majority"]["macro_f1"]
    demonstrations = load_demonstrations()[0]
    for _, chats in asker.passes:
        for chat in chats:
            hidden = "\n".join(message["content"] for message in chat.imagined)
            assert not [step for step in STEPS if step in hidden or snake(step) in hidden], chat.id
            assert "kettle.hot" not in hidden
            if prompt != "two_questions":  # the paper's prompt has no goal
                assert GOLD[chat.id[0]]["goal"].lower().split()[0] in hidden.lower()
            assert chat.imagined[1] == chat.messages[1], "demonstrations stay"
            assert clause(demonstrations.events[0].event) in hidden or demonstrations.events[0].event in hidden
            assert [message["role"] for message in chat.messages] == [message["role"] for message in chat.imagined]


@pytest.mark.parametrize(
    ("prompt", "entities"), [("chat", "none"), ("cot", "gold"), ("code_flat", "none"), ("code", "gold")]
)
def test_replies_that_tell_of_the_steps_are_not_in_the_imagined_view(
    tmp_path: Path, prompt: str, entities: str
) -> None:
    _, asker = run(tmp_path, lambda chat: f"Yes. <<{last(chat)}>>", prompt=prompt, entities=entities)
    chats = [chat for _, asked in asker.passes for chat in asked]
    assert any("<<" in str(chat.messages) for chat in chats)
    for chat in chats:
        assert "<<" not in str(chat.imagined)
        assert [turn["role"] for turn in chat.imagined] == [turn["role"] for turn in chat.messages]


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
