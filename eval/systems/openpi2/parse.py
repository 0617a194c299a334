"""Replies of models → schemata, states and sentences, by the official scripts' rules."""

from __future__ import annotations

import re

ERROR = "Error"
_BEFORE_AND = " before and "
_LABELLED = re.compile(r"Before: (.*?)\nAfter: (.*)", re.DOTALL)


def parse_schema(reply: str) -> dict[str, list[str]]:
    """`entity (attribute, attribute), entity (attribute)` as attributes by entity, in order.

    Entities are split at `"), "`; what has no `" ("` is no entity and left out, as is an empty attribute.
    """
    schema: dict[str, list[str]] = {}
    for part in reply.strip().split("), "):
        entity, opens, rest = part.partition(" (")
        # The text up to the next " (" is what the official split takes.
        names = [name.strip().strip(".").strip(")") for name in rest.split(" (")[0].split(",")]
        for attribute in filter(None, names) if opens else ():
            schema.setdefault(entity, []).append(attribute)
    return schema


def parse_states(reply: str) -> tuple[str, str]:
    """States before and after: of `Before: …` and `After: …` on two lines, or of `… before and … after`.

    A reply of another form gives `Error` for both.
    """
    reply = reply.strip()
    labelled = _LABELLED.search(reply)
    if labelled:
        return labelled[1].strip(), labelled[2].split("\nBefore: ")[0].strip()
    before, found, after = reply.partition(_BEFORE_AND)
    if found:
        return before, after.split(" after")[0]
    return ERROR, ERROR


def parse_sentences(reply: str) -> list[str]:
    """One sentence a line, without the dash before it."""
    return [line.strip(" -") for line in reply.strip().split("\n")]


def parse_change(text: str) -> tuple[str, str, str, str] | None:
    """Entity, attribute, before and after of a sentence "ATTRIBUTE of ENTITY was BEFORE before and AFTER after"."""
    match = re.fullmatch(r"(.+?) of (.+?) (?:was|were) (.+?) before and (.+?) after(?:wards)?\.?", text.strip())
    return None if match is None else (match[2], match[1], match[3], match[4])


def first_integer(reply: str) -> int:
    """The first whole number in a reply, 1 where there is none."""
    digits = re.search(r"\d+", reply)
    return int(digits.group()) if digits else 1
