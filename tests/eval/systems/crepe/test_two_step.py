"""Preconditions first, then the changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from eval.run.task import Conversation
from eval.systems.crepe.two_step import most_frequent
from tests.eval.systems.crepe.perfect import write_code
from tests.eval.systems.crepe.procedures import BURN, LABELS, last, run

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
