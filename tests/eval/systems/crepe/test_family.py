"""Every family of prompts: a perfect model gets a perfect score, and the imagined view shows no step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eval.systems.crepe.code_style import snake
from eval.systems.crepe.family import load_demonstrations
from eval.systems.crepe.system import FAMILIES
from eval.systems.crepe.text_families import clause
from tests.eval.systems.crepe.perfect import FROM_FIRST, STEPS, rule_of
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
