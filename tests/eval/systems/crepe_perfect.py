"""A model that is always right, in the form that each family of prompts asks for."""

import re
from collections.abc import Callable

from eval.run.task import TaskItem
from eval.systems.crepe.gold import LABELS
from tests.eval.systems import crepe_procedures as procedures
from tests.eval.systems.crepe_procedures import last

# Whether each event is likely at the start and after each step, as the gold labels have it.
LIKELY = {("3", 0): "0110", ("3", 1): "0001", ("5", 0): "100"}


OPTIONS = ("more likely", "less likely", "equally likely")


def place(chat: TaskItem) -> tuple[str, int, int]:
    """Procedure, event and step that are asked about: the id names the step, or each turn is about the next one."""
    name, event, *step = re.findall(r"\d", chat.id)
    return name, int(event), int(step[0]) if step else turn(chat) + 1


def turn(chat: TaskItem) -> int:
    """How many replies the model gave before; demonstrations aside."""
    return sum(message["role"] == "assistant" for message in chat.messages)


def label(name: str, event: int, step: int) -> str:
    return LABELS[procedures.LABELS[name][step - 1][event]]


def likely(name: str, event: int, step: int) -> bool:
    return LIKELY[name, event][step] == "1"


def at_its_place(text: Callable[[str, int, int], str]) -> Callable[[TaskItem], str]:
    """A rule that knows the procedure, event and step that are asked about."""
    return lambda chat: text(*place(chat))


say_level = at_its_place(lambda *asked: "likely" if likely(*asked) else "unlikely")
say_change = at_its_place(lambda *asked: f'"{label(*asked)}"')
say_yes_or_no = at_its_place(lambda *asked: "Yes" if likely(*asked) else "No")
say_option = at_its_place(lambda *asked: f"Options[{OPTIONS.index(label(*asked))}]")


def say_all_levels(chat: TaskItem) -> str:
    name, event, _ = place(chat)
    steps = range(1, len(LIKELY[name, event]))
    return "\n".join(f"Step {n}: {'(B) likely' if likely(name, event, n) else '(D) unlikely'}" for n in steps)


def say_true_or_false(chat: TaskItem) -> str:
    """Both questions answered by steps: true where the label is the way that is asked about."""
    way = chat.id.rpartition("/")[2]
    answer = label(*place(chat)) == f"{way} likely"
    return f"#1 Is it so?\nno\nTherefore, the answer to the original question is {answer}."


def write_code(chat: TaskItem) -> str:
    owner = "" if "def make_tea" in last(chat) or "def light_lamp" in last(chat) else "self."
    lines = []
    for step, labels in enumerate(procedures.LABELS[chat.id], start=1):
        lines.append(f"    def step_{step}(self):")
        lines += [f'        {owner}event{n}.change = "{LABELS[number]}"' for n, number in enumerate(labels)]
    return "\n".join(lines)


def write_events(chat: TaskItem) -> str:
    labels = procedures.LABELS[chat.id][turn(chat)]
    return "\n".join(f'self.event{n}.change = "{LABELS[number]}"' for n, number in enumerate(labels))


def write_two_steps(chat: TaskItem) -> str:
    return write_code(chat) if chat.id in procedures.LABELS else 'event.precondition = ("the tea", "hot")'


RULES = {
    "code_two_step": write_two_steps,
    "text": say_level,
    "text_change": say_change,
    "text_at_once": say_all_levels,
    "yes_no": say_yes_or_no,
    "two_questions": say_true_or_false,
    "cot": say_change,
    "self_ask": lambda chat: f"Follow up: so?\nIntermediate answer: likely\nAnswer: {say_level(chat)}",
    "chat": say_yes_or_no,
    "code_flat": say_option,
}
# These compare each likelihood with the one before, and have none before the first step.
FROM_FIRST = ("text", "text_at_once", "yes_no", "self_ask", "chat")


def rule_of(prompt: str, entities: str) -> Callable[[TaskItem], str]:
    if prompt.startswith("code") and entities in ("gold", "predicted"):
        return write_events
    return RULES.get(prompt, write_code)
