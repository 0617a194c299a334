"""Replies → labels: each reader gives None where it finds no answer, which is counted and scored as equally likely."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from eval.systems.crepe.gold import EQUALLY, LABELS, LESS, MORE, EntityChange

Parse = Literal["official", "lenient"]
EventLabels = list[int | None]  # one per step; None where no label could be read
# Longer ones first, as "unlikely" and "very likely" hold "likely".
_LEVELS = {"very unlikely": 0, "unlikely": 1, "very likely": 3, "likely": 2}
# From here on a level is "likely".
LIKELY = 2
_STEP_LINE = re.compile(r"\W*step\s*(\d{1,9})\b(.*)", re.IGNORECASE)
_LETTER = re.compile(r"\(([A-D])\)")
_NEGATION = r"(?:\bnot|n['’]t)(?: (?:at all|all that|so|too|very|really))? "
_LEVEL = re.compile(rf"({_NEGATION})?\b({'|'.join(_LEVELS)})\b", re.IGNORECASE)
_ANSWER = re.compile(r"(?<!intermediate )answer:", re.IGNORECASE)
_CHANGE = re.compile(r"\b(equally|less|more)[ _-]likely\b", re.IGNORECASE)
_YES_OR_NO = re.compile(r"\b(yes|no)\b", re.IGNORECASE)
_TRUTH = re.compile(r"original question is\W*(true|false|yes|no)\b", re.IGNORECASE)
_CHANGES = {"equally": EQUALLY, "less": LESS, "more": MORE}


def read_level(reply: str) -> int | None:
    """Return a likelihood from 0 (very unlikely) to 3 (very likely): the first after "Answer:", else the first.

    With a negation it is 1 for any that is likely, and 2 for any that is unlikely.
    """
    marker = _ANSWER.search(reply)
    level = _LEVEL.search(reply, marker.end() if marker else 0)
    if level is None:
        return None
    found = _LEVELS[level[2].lower()]
    return found if level[1] is None else LIKELY - 1 if found >= LIKELY else LIKELY


def read_lettered_levels(reply: str, steps: int) -> EventLabels:
    """Return the likelihood from 0 to 3 at each step, from lines such as `Step 1: (A) very likely`.

    The letter counts, else the words; of several lines about a step the first.
    """
    levels: list[int | None] = [None] * steps
    for line in filter(None, map(_STEP_LINE.match, reply.splitlines())):
        step, letter = int(line[1]) - 1, _LETTER.search(line[2])
        if 0 <= step < steps and levels[step] is None:
            levels[step] = 3 - "ABCD".index(letter[1]) if letter else read_level(line[2])
    return levels


def read_yes_or_no(reply: str) -> int | None:
    """Return 1 for yes, 0 for no; without either, likely counts as yes and unlikely as no."""
    answer = _YES_OR_NO.search(reply)
    return int(answer[1].lower() == "yes") if answer else read_likely(reply)


def read_likely(reply: str) -> int | None:
    """Return 1 for likely, 0 for unlikely, by `read_level`."""
    level = read_level(reply)
    return None if level is None else int(level >= LIKELY)


def changes_of(levels: Sequence[int | None], likely: int = 1) -> EventLabels:
    """Return labels from likelihoods after each step, each compared with the last readable one, as officially.

    The first step is no change, because nothing comes before it. If it is unreadable, the first readable one counts
    as a change; `likely` is the least level that is likely.
    """
    labels: EventLabels = []
    before: int | None = None
    for level in levels:
        if level is None:
            labels.append(None)
            continue
        if before is None:
            labels.append(EQUALLY if not labels else MORE if level >= likely else LESS)
        else:
            labels.append(EQUALLY if level == before else MORE if level > before else LESS)
        before = level
    return labels


def read_truth(reply: str) -> bool | None:
    """Return the answer to the original question, True or False; None without one."""
    answer = _TRUTH.search(reply)
    return None if answer is None else answer[1].lower() in ("true", "yes")


def change_of_truths(more: bool | None, less: bool | None) -> int | None:
    """Return the label by the answers to "is it more likely" and "is it less likely"; None without one of them."""
    if more is None or less is None:
        return None
    return EQUALLY if more == less else MORE if more else LESS


def read_change(reply: str) -> int | None:
    """Return the label after the last "likelihood change is" of a chain of thought, else the last label."""
    for rest in reversed(reply.lower().split("likelihood change is")[1:]):
        if stated := _CHANGE.search(rest):
            return _CHANGES[stated[1]]
    labels = _CHANGE.findall(reply.lower())
    return _CHANGES[labels[-1]] if labels else None


def read_option(reply: str) -> int | None:
    """Return the label that code names, as `Options[N]` (more, less, equally likely) or in words."""
    option = re.search(r"\[\s*([0-2])\s*\]", reply)
    if option:
        return (MORE, LESS, EQUALLY)[int(option[1])]
    words = _CHANGE.search(reply)
    return _CHANGES[words[1].lower()] if words else None


@dataclass(frozen=True)
class CrepeAnswer:
    """What a model said about one procedure: a label for each [step][event], None where it could not be read.

    `entities` are the changes that the model wrote itself, by step. `inconsistent` counts pairs of answers that
    contradict each other.
    """

    labels: list[list[int | None]]
    entities: list[list[EntityChange]] = field(default_factory=list)
    inconsistent: int = 0


_OFFICIAL_EVENT = re.compile(r'(?:self\.)?event(\d)\d*\.change = "((?:equally|less|more) likely)"')
_LENIENT_EVENT = re.compile(
    r"""(?:self\.)?event(\d{1,9})\.change\s*=\s*["']((?:equally|less|more) likely)["']""", re.IGNORECASE
)
_ENTITY = re.compile(r"self\.(?!event\d)(\w+)\.(\w+)\s*=\s*(True|False)\b")
# The class, its constructor, and the outer one of nested functions, which takes the events.
_HEADER = re.compile(r"\s*(class\s|def __init__|def \w+\(event0)")
_FENCE = re.compile(r"```[a-zA-Z]*\n(.*?)(?:```|\Z)", re.DOTALL)


def read_code(reply: str, steps: int, events: int, parse: Parse) -> CrepeAnswer:
    """Read step functions.

    The official reading ends at the first blank line. Each `def` begins the next step, by its position and not its
    name; lines before the first belong to the first step. One digit of an event's number is read. Steps and events
    that the procedure lacks are ignored. The lenient reading continues after blank lines, reads whole numbers, and
    takes the last of several changes.

    A code fence around the code is skipped, and so is a repetition of the class down to its constructor.
    """
    pattern = _OFFICIAL_EVENT if parse == "official" else _LENIENT_EVENT
    result = CrepeAnswer([[None] * events for _ in range(steps)], [[] for _ in range(steps)])
    step, first = 0, True
    for line in map(str.strip, _bare(reply).split("\n")):
        if not line and parse == "official":
            break
        if line.startswith("def "):
            step, first = (0 if first else step + 1), False
        elif step < steps and (event := pattern.match(line)) and int(event[1]) < events:
            label, number = LABELS.index(event[2].lower()), int(event[1])
            # A change to `equally likely` does not undo another one, officially.
            if parse == "lenient" or label != EQUALLY or result.labels[step][number] is None:
                result.labels[step][number] = label
        elif step < steps and (entity := _ENTITY.match(line)):
            result.entities[step].append(EntityChange(entity[1], entity[2], entity[3]))
    return result


def _bare(reply: str) -> str:
    """Return the code without a fence, and without a repeated class and constructor."""
    fenced = _FENCE.search(reply)
    lines = (fenced[1] if fenced else reply).strip("\n").split("\n")
    headers = [place for place, line in enumerate(lines) if _HEADER.match(line)]
    if 0 not in headers:
        return "\n".join(lines)
    after = max(headers) + 1
    begins = next((place for place in range(after, len(lines)) if lines[place].strip().startswith("def ")), len(lines))
    return "\n".join(lines[begins:])
