"""Code prompts: how a procedure is written as code, and preconditions first, then the changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from eval.run.task import Conversation
from eval.systems.crepe.code_families import most_frequent
from eval.systems.crepe.code_style import CodeStyle, header, snake, solution, title
from eval.systems.crepe.family import load_demonstrations
from tests.eval.systems.crepe.perfect import say_option, turn, write_code, write_events
from tests.eval.systems.crepe.procedures import BURN, LABELS, last, run


def test_the_class_has_goal_steps_and_events_and_ends_with_the_constructor(tmp_path: Path) -> None:
    _, asker = run(tmp_path, write_code)
    chat = asker.passes[0][1][0]
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
    first, third = asker.passes[0][1][0], asker.passes[2][1][0]
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
    chat = asker.passes[1][1][0]
    assert chat.messages[1]["content"].splitlines()[:2] == ['Goal = "Make tea"', 'Context = "Boil the water."']
    assert last(chat).splitlines()[0] == 'Context = "Pour it on the leaves."'
    assert last(chat).splitlines()[-2:] == ['Options = ["more likely", "less likely", "equally likely"]', "Answer ="]
    assert chat.imagined[-1]["content"].splitlines()[0] == 'Context = ""'


@pytest.mark.parametrize(("text", "names"), [("the pan", ("pan", "Pan")), ("2 eggs", ("n_2_eggs", "n_2_Eggs"))])
def test_identifiers(text: str, names: tuple[str, str]) -> None:
    assert (snake(text), title(text)) == names
    assert snake("Class") == "class_"
    assert snake("A") == "a"


REPLY = """        event.precondition = ("kettle", "hot")
    def pour(self):
        event = "I burn my hand."
        event.precondition = \\
            ('Kettle', "hot")
    def wait(self):
        event.precondition = ("tea", "cold")"""


@pytest.mark.parametrize(
    ("reply", "state"),
    [
        (REPLY, ("kettle", "hot")),
        ('event.precondition = ("tea", "cold")\nevent.precondition = ("kettle", "hot")', ("tea", "cold")),
        ('precondition = ("the cook\'s hand", "bare")', ("the cook's hand", "bare")),
        ("I cannot.", None),
        ('event.precondition = "hot"', None),
    ],
)
def test_the_most_frequent_precondition_counts_and_of_several_the_first(
    reply: str, state: tuple[str, str] | None
) -> None:
    assert most_frequent(reply) == state


def said(chat: Conversation) -> str:
    if chat.id in LABELS:
        return write_code(chat)
    return REPLY if chat.id == "3/event0" else "I cannot."


def test_each_event_is_asked_about_and_its_state_opens_the_class(tmp_path: Path) -> None:
    result, asker = run(tmp_path, said, prompt="code_two_step", shots=1)
    (first, preconditions), (second, answers) = asker.asked.items()
    assert (first, [chat.id for chat in preconditions]) == ("preconditions", ["3/event0", "3/event1", "5/event0"])
    assert last(preconditions[0]).splitlines() == [
        *("class Make_Tea:", "    # Start.", "    # Boil the water.", "    # Pour it on the leaves."),
        *("    # Wait an hour.", "    def boil_water(self):", f'        event = "{BURN}"'),
    ]
    assert (second, [chat.id for chat in answers]) == ("answers", ["3", "5"])
    assert last(answers[0]).splitlines()[-1] == "        self.kettle = Kettle()  # hot"
    assert "Kettle" not in answers[0].imagined[-1]["content"]
    assert "()" not in last(answers[1]), "nobody named a state for the lamp"
    assert result.scores["macro_f1"] == 1


def test_demonstrations_show_both_steps(tmp_path: Path) -> None:
    _, asker = run(tmp_path, said, prompt="code_two_step", shots=1)
    precondition = asker.passes[0][1][0].messages[2]["content"].splitlines()
    assert precondition[0] == '        event.precondition = ("the lantern", "glowing")'
    assert len([line for line in precondition if "precondition" in line]) == 5
    code = asker.passes[1][1][0].messages
    assert code[1]["content"].splitlines()[-2:] == [
        *("        self.lantern = Lantern()  # glowing", "        self.book = Book()  # open")
    ]
    assert code[2]["content"].splitlines()[5:10] == [
        "    def twist_knob_of_lantern_to_its_brightest_setting(self):",
        "        self.lantern.glowing = True",
        "        self.book.open = False",
        '        self.event0.change = "more likely"  # Moths gather around the lantern.',
        '        self.event1.change = "equally likely"  # I lose my page when someone bumps into me.',
    ]
