"""The structure of each prompt family, and that a perfect model gets a perfect score through it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from eval.run.engines.conversation_task import Conversation
from eval.systems.crepe.demonstrations import load_demonstrations
from eval.systems.crepe.labels import LABELS
from eval.systems.crepe.options import PAIRS, CrepeOptions
from eval.systems.crepe.prompts.code import CodeStyle, header, solution
from eval.systems.crepe.prompts.identifiers import snake, title
from eval.systems.system import parse_options
from tests.eval.systems.crepe import procedures
from tests.eval.systems.crepe.procedures import BURN, GOLD, last, run, save

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


@pytest.mark.parametrize(("prompt", "entities"), [(p, e) for p, kinds in PAIRS.items() for e in kinds])
def test_a_model_that_is_always_right_scores_one(tmp_path: Path, prompt: str, entities: str) -> None:
    options = {"prompt": prompt, "entities": entities, "shots": 0}
    if entities == "predicted":
        options["entities_file"] = save(tmp_path / "states.json", {"3": {}, "5": {}})
    result, _ = run(tmp_path / "data", rule_of(prompt, entities), **options)
    assert result.scores["macro_f1"] == result.scores["corrected"]["macro_f1"] == 1
    assert result.scores["unparsed"] == {"share": 0.0, "pairs": 0}


@pytest.mark.parametrize(("prompt", "entities"), [(p, e) for p, kinds in PAIRS.items() for e in kinds])
def test_what_cannot_be_read_is_counted_and_scored_as_no_change(tmp_path: Path, prompt: str, entities: str) -> None:
    options = {"prompt": prompt, "entities": entities}
    if entities == "predicted":
        options["entities_file"] = save(tmp_path / "states.json", {"3": {}, "5": {}})
    result, _ = run(tmp_path / "data", lambda _: "Hm?", **options)
    assert result.scores["unparsed"] == {"share": 1.0, "pairs": 8}
    assert result.scores["macro_f1"] == result.scores["baselines"]["majority"]["macro_f1"]


@pytest.mark.parametrize(("prompt", "entities"), [(p, e) for p, kinds in PAIRS.items() for e in kinds])
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


def test_plain_text_asks_for_each_event_before_and_after_each_step(tmp_path: Path) -> None:
    _, asker = run(tmp_path, say_level, prompt="text", shots=0)
    ((name, chats),) = asker.asked
    assert name == "answers"
    assert [chat.id for chat in chats][:5] == [*(f"3/event0/step{n}" for n in range(4)), "3/event1/step0"]
    assert len(chats) == 2 * 4 + 3
    assert last(chats[0]).splitlines()[:3] == ["Goal: Make tea", "Done so far: (nothing yet)", f"Event: {BURN}"]
    assert "Done so far: Boil the water. Pour it on the leaves.\n" in last(chats[2])
    assert "Done so far: (not shown)\n" in chats[2].imagined[-1]["content"]


def test_gold_states_follow_their_steps(tmp_path: Path) -> None:
    _, asker = run(tmp_path, say_change, prompt="cot", entities="gold", shots=1)
    chats = {chat.id: chat for chat in asker.asked[0][1]}
    shown = "Boil the water. (the kettle: hot) Pour it on the leaves. Wait an hour. (the kettle: not hot; "
    assert f"Done so far: {shown}the tea: not hot)\n" in last(chats["3/event0/step3"])
    assert "(the lantern: glowing)" in str(chats["3/event0/step3"].messages), "demonstrations show theirs"


def test_a_chain_of_thought_demonstration_ends_in_its_label(tmp_path: Path) -> None:
    _, asker = run(tmp_path, say_change, prompt="cot")
    replies = [m["content"] for m in asker.asked[0][1][0].messages if m["role"] == "assistant"]
    events = [(shown, shown.events[0]) for shown in load_demonstrations()]
    expected = [LABELS[event.label(step)] for shown, event in events for step in range(1, len(shown.steps) + 1)]
    assert [re.findall(r'likelihood change is "(.*)"\.$', reply) for reply in replies] == [[text] for text in expected]


def test_self_ask_goes_from_the_state_to_the_event(tmp_path: Path) -> None:
    _, asker = run(tmp_path, say_level, prompt="self_ask", shots=1)
    reply = asker.asked[0][1][0].messages[2]["content"].splitlines()
    event = load_demonstrations()[0].events[0]
    assert reply == [
        f"Follow up: {event.ask}",
        "Intermediate answer: No.",
        f"Follow up: {event.link}",
        "Intermediate answer: No.",
        "Answer: very unlikely",
    ]


def test_a_chat_tells_the_steps_turn_by_turn_and_keeps_the_replies(tmp_path: Path) -> None:
    _, asker = run(tmp_path, say_yes_or_no, prompt="chat")
    assert [(name, len(chats)) for name, chats in asker.asked] == [
        ("turn-01", 3), ("turn-02", 3), ("turn-03", 3), ("turn-04", 2)
    ]  # fmt: skip
    chat = asker.asked[2][1][0]
    assert [message["role"] for message in chat.messages] == ["system", *["user", "assistant"] * 2, "user"]
    assert [message["content"] for message in chat.messages if message["role"] == "assistant"] == ["No", "Yes"]
    assert "Boil the water." in chat.messages[3]["content"]
    assert "Pour it on the leaves." in last(chat)
    assert "Wait an hour." not in str(chat.messages)


def test_the_class_has_goal_steps_and_events_and_ends_with_the_constructor(tmp_path: Path) -> None:
    _, asker = run(tmp_path, write_code)
    chat = asker.asked[0][1][0]
    assert last(chat).splitlines() == [
        "class Make_Tea:",
        "    # Start.",
        "    # Boil the water.",
        "    # Pour it on the leaves.",
        "    # Wait an hour.",
        "    def __init__(self, event0, event1):",
        f"        self.event0 = event0  # {BURN}",
        "        self.event1 = event1  # The tea is cold.",
    ]
    assert chat.imagined[-1]["content"].splitlines()[1:5] == [
        "    # Start.", "    # Step 1.", "    # Step 2.", "    # Step 3."
    ]  # fmt: skip
    assert [message["role"] for message in chat.messages] == ["system", *["user", "assistant"] * 3, "user"]


def test_the_ablations_change_what_they_say() -> None:
    shown = load_demonstrations()[0]
    events = [event.event for event in shown.events]
    full, bare, plain, nested = (
        CodeStyle(), CodeStyle(step_comments=False), CodeStyle(event_comments=False), CodeStyle(nested=True)
    )  # fmt: skip
    assert shown.steps[0] in header(full, shown.goal, shown.steps, events)
    assert shown.steps[0] not in header(bare, shown.goal, shown.steps, events)
    assert events[0] in solution(shown, full)
    assert events[0] not in solution(shown, plain)
    assert events[0] in header(plain, shown.goal, shown.steps, events), "the constructor keeps them"
    assert header(nested, shown.goal, shown.steps, events).startswith(
        "def read_book_in_tent_at_night(event0, event1):"
    )
    assert "self" not in header(nested, shown.goal, shown.steps, events) + solution(shown, nested)


def test_soft_states_are_sub_events_before_their_events() -> None:
    shown = load_demonstrations()[0]
    style = CodeStyle(entities="soft")
    assert "(self, event0, subevent0, event1, subevent1):" in header(style, shown.goal, shown.steps, ["a", "b"])
    lines = [line.strip() for line in solution(shown, style).splitlines()]
    assert lines[0] == "self.event0.subevent = subevent0  # The lantern is glowing."
    second = lines.index("def twist_knob_of_lantern_to_its_brightest_setting(self):")
    assert lines[second + 1] == 'self.event0.subevent.change = "more likely"  # The lantern is glowing.'
    assert lines[second + 2] == 'self.event0.change = "more likely"  # Moths gather around the lantern.'


def test_hard_states_are_attributes_of_objects_before_the_events(tmp_path: Path) -> None:
    shown = load_demonstrations()[0]
    lines = [line.strip() for line in solution(shown, CodeStyle(entities="hard")).splitlines()]
    assert lines[:2] == ["self.lantern = Lantern()", "self.book = Book()"]
    second = lines.index("def twist_knob_of_lantern_to_its_brightest_setting(self):")
    assert lines[second + 1] == "self.lantern.glowing = True"
    reply = 'def a(self):\nself.kettle.hot = True\nself.event0.change = "more likely"'
    result, _ = run(tmp_path, lambda _: reply, entities="hard")
    assert '"type": "predicted_entity"' in result.files["crepe_predictions.json"]


def test_given_states_are_shown_step_by_step(tmp_path: Path) -> None:
    _, asker = run(tmp_path, write_events, entities="gold", shots=0)
    first, third = asker.asked[0][1][0], asker.asked[2][1][0]
    assert last(first).splitlines()[-4:] == [
        "        self.kettle = Kettle()",
        "        self.tea = Tea()",
        "    def boil_water(self):",
        "        self.kettle.hot = True",
    ]
    assert "= False" not in str(first.messages), "nothing of later steps is seen"
    assert last(third).splitlines() == [
        "    def wait_hour(self):",
        "        self.kettle.hot = False",
        "        self.tea.hot = False",
    ]
    assert turn(third) == 2


def test_a_reply_may_repeat_the_code_before_its_step(tmp_path: Path) -> None:
    def repeat(chat: Conversation) -> str:
        before = "\n".join(message["content"] for message in chat.messages[1:])
        return f"```python\n{before}\n{write_events(chat)}\n```"

    result, _ = run(tmp_path, repeat, entities="gold", shots=0)
    assert result.scores["macro_f1"] == 1


def test_flat_code_asks_with_variables_a_step_a_turn(tmp_path: Path) -> None:
    _, asker = run(tmp_path, say_option, prompt="code_flat", shots=0)
    chat = asker.asked[1][1][0]
    assert chat.messages[1]["content"].splitlines()[:2] == ['Goal = "Make tea"', 'Context = "Boil the water."']
    assert last(chat).splitlines()[0] == 'Context = "Pour it on the leaves."'
    assert last(chat).splitlines()[-2:] == ['Options = ["more likely", "less likely", "equally likely"]', "Answer ="]
    assert chat.imagined[-1]["content"].splitlines()[0] == 'Context = ""'


@pytest.mark.parametrize(("text", "names"), [("the pan", ("pan", "Pan")), ("2 eggs", ("n_2_eggs", "n_2_Eggs"))])
def test_identifiers(text: str, names: tuple[str, str]) -> None:
    assert (snake(text), title(text)) == names
    assert snake("Class") == "class_"
    assert snake("A") == "a"


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


@pytest.mark.parametrize("given", [("prompt=chat", "entities=gold"), ("prompt=code_nested", "entities=soft")])
def test_pairs_that_the_paper_has_not_are_refused_with_those_it_has(given: tuple[str, str]) -> None:
    with pytest.raises(UserError) as caught:
        parse_options(CrepeOptions, given, "crepe")
    assert "the paper has no such prompt" in caught.value.message
    assert "prompt=code with entities=none|soft|hard|gold|predicted" in caught.value.message


@pytest.mark.parametrize("given", [("entities=predicted",), ("entities_file=x.json",)])
def test_predicted_states_need_their_file_and_no_other_kind_takes_one(given: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match="are given together or not at all"):
        parse_options(CrepeOptions, given, "crepe")


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
