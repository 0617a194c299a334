"""Every family of prompts: a perfect model gets a perfect score, and the imagined view shows no step."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from eval.run.engines.conversation_task import Conversation
from eval.systems.crepe.code_families import snake
from eval.systems.crepe.demonstrations import load_demonstrations
from eval.systems.crepe.gold import LABELS
from eval.systems.crepe.system import FAMILIES
from tests.eval.systems.crepe import procedures
from tests.eval.systems.crepe.procedures import GOLD, last, run, save

STEPS = ("Boil the water.", "Pour it on the leaves.", "Wait an hour.", "Close the curtains.", "Flip the switch.")
# Whether each event is likely at the start and after each step, as the gold labels have it.
LIKELY = {("3", 0): "0110", ("3", 1): "0001", ("5", 0): "100"}


def place(chat: Conversation) -> tuple[str, int, int]:
    """Procedure, event and step of a conversation about one event and step."""
    found = re.fullmatch(r"(\d)/event(\d)/step(\d)", chat.id)
    assert found
    return found[1], int(found[2]), int(found[3])


def turn(chat: Conversation) -> int:
    """How many replies the model gave before; demonstrations aside."""
    return sum(message["role"] == "assistant" for message in chat.messages)


def label(name: str, event: int, step: int) -> str:
    return LABELS[procedures.LABELS[name][step - 1][event]]


def say_level(chat: Conversation) -> str:
    name, event, step = place(chat)
    return "likely" if LIKELY[name, event][step] == "1" else "unlikely"


def say_change(chat: Conversation) -> str:
    return f'So the likelihood change is "{label(*place(chat))}".'


def say_yes_or_no(chat: Conversation) -> str:
    name, event = re.findall(r"\d", chat.id)
    return "Yes" if LIKELY[name, int(event)][turn(chat)] == "1" else "No"


def say_option(chat: Conversation) -> str:
    name, event = re.findall(r"\d", chat.id)
    order = ["more likely", "less likely", "equally likely"]
    return f"Options[{order.index(label(name, int(event), turn(chat) + 1))}]"


def write_code(chat: Conversation) -> str:
    owner = "" if "def make_tea" in last(chat) or "def light_lamp" in last(chat) else "self."
    lines = []
    for step, labels in enumerate(procedures.LABELS[chat.id], start=1):
        lines.append(f"    def step_{step}(self):")
        lines += [f'        {owner}event{n}.change = "{LABELS[number]}"' for n, number in enumerate(labels)]
    return "\n".join(lines)


def write_events(chat: Conversation) -> str:
    labels = procedures.LABELS[chat.id][turn(chat)]
    return "\n".join(f'self.event{n}.change = "{LABELS[number]}"' for n, number in enumerate(labels))


RULES = {
    "text": say_level,
    "cot": say_change,
    "self_ask": lambda chat: f"Follow up: so?\nIntermediate answer: likely\nAnswer: {say_level(chat)}",
    "chat": say_yes_or_no,
    "code_flat": say_option,
}


def rule_of(prompt: str, entities: str) -> procedures.Callable[[Conversation], str]:
    if prompt.startswith("code") and entities in ("gold", "predicted"):
        return write_events
    return RULES.get(prompt, write_code)


@pytest.mark.parametrize(("prompt", "entities"), [(p, e) for p, f in FAMILIES.items() for e in f.entities])
def test_a_model_that_is_always_right_scores_one(tmp_path: Path, prompt: str, entities: str) -> None:
    options = {"prompt": prompt, "entities": entities, "shots": 0}
    if entities == "predicted":
        options["entities_file"] = save(tmp_path / "states.json", {"3": {}, "5": {}})
    result, _ = run(tmp_path / "data", rule_of(prompt, entities), **options)
    assert result.scores["macro_f1"] == result.scores["corrected"]["macro_f1"] == 1
    assert result.scores["unparsed"] == {"share": 0.0, "pairs": 0}


@pytest.mark.parametrize(("prompt", "entities"), [(p, e) for p, f in FAMILIES.items() for e in f.entities])
def test_what_cannot_be_read_is_counted_and_scored_as_no_change(tmp_path: Path, prompt: str, entities: str) -> None:
    options = {"prompt": prompt, "entities": entities}
    if entities == "predicted":
        options["entities_file"] = save(tmp_path / "states.json", {"3": {}, "5": {}})
    result, _ = run(tmp_path / "data", lambda _: "Hm?", **options)
    assert result.scores["unparsed"] == {"share": 1.0, "pairs": 8}
    assert result.scores["macro_f1"] == result.scores["baselines"]["majority"]["macro_f1"]


@pytest.mark.parametrize(("prompt", "entities"), [(p, e) for p, f in FAMILIES.items() for e in f.entities])
def test_the_imagined_view_has_no_step_and_no_state(tmp_path: Path, prompt: str, entities: str) -> None:
    options = {"prompt": prompt, "entities": entities, "shots": 1}
    if entities == "predicted":
        states = {"3": {"1": [{"entity": "kettle", "attribute": "hot", "change": "more likely"}]}, "5": {}}
        options["entities_file"] = save(tmp_path / "states.json", states)
    _, asker = run(tmp_path / "data", lambda _: "Yes", **options)
    demonstrations = load_demonstrations()[0]
    for _, chats in asker.asked:
        for chat in chats:
            hidden = "\n".join(message["content"] for message in chat.imagined)
            assert not [step for step in STEPS if step in hidden or snake(step) in hidden], chat.id
            assert "kettle.hot" not in hidden
            assert GOLD[chat.id[0]]["goal"].lower().split()[0] in hidden.lower()
            assert chat.imagined[1] == chat.messages[1], "demonstrations stay"
            assert demonstrations.events[0].event in hidden
            assert [message["role"] for message in chat.messages] == [message["role"] for message in chat.imagined]


@pytest.mark.parametrize(("prompt", "entities"), [("chat", "none"), ("code_flat", "none"), ("code", "gold")])
def test_replies_that_tell_of_the_steps_are_not_in_the_imagined_view(
    tmp_path: Path, prompt: str, entities: str
) -> None:
    _, asker = run(tmp_path, lambda chat: f"Yes. <<{last(chat)}>>", prompt=prompt, entities=entities)
    chats = [chat for _, asked in asker.asked for chat in asked]
    assert any("<<" in str(chat.messages) for chat in chats)
    for chat in chats:
        assert "<<" not in str(chat.imagined)
        assert [turn["role"] for turn in chat.imagined] == [turn["role"] for turn in chat.messages]
