"""Conversations: chat rows in the usual shapes, and where in them the context stands.

A conversation is kept once, with its context cut out and the place marked, so that each view is the same turns with
the context, without it, or with its relevant part. What the user wrote around the context (`<context>`, `Policy:`)
goes with it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

Role = Literal["system", "user", "assistant", "tool"]
ROLES: tuple[Role, ...] = get_args(Role)
# Which assistant turns are trained on; `each` makes a row of each, so no conversation is kept with it.
Loss = Literal["last", "all"]
LossChoice = Literal["last", "all", "each"]
CONTEXT = "{context}"
# ShareGPT's names, and OpenAI's newer one for `system`.
_OTHER_ROLES: dict[str, Role] = {
    "human": "user",
    "gpt": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "developer": "system",
    "observation": "tool",
}


class Turn(BaseModel):
    """One turn: who speaks, and the text."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    role: Role
    content: str


class Conversation(BaseModel):
    """The turns before the answer, with the context cut out.

    Attributes:
        turns: up to the assistant turn that is the sample's answer, that one left out.
        context_turn: which of them holds the context; None where the sample has none.
        context_at: how many characters of that turn stand before it.
        context_block: what stands there, `{context}` for the context itself; without a context all of it is left out.
        loss: training's loss is on the answer alone (`last`), or on the earlier assistant turns too (`all`).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    turns: list[Turn] = Field(min_length=1)
    context_turn: int | None = None
    context_at: int = 0
    context_block: str = CONTEXT
    loss: Loss = "last"

    @model_validator(mode="after")
    def _place_is_there(self) -> Self:
        if self.context_block.count(CONTEXT) != 1:
            raise ValueError(f"conversation.context_block: got {self.context_block!r}; expected {CONTEXT} in it, once")
        if self.context_turn is None:
            return self
        if not 0 <= self.context_turn < len(self.turns):
            raise ValueError(f"conversation.context_turn: got {self.context_turn}; there are {len(self.turns)} turns")
        if not 0 <= self.context_at <= len(self.turns[self.context_turn].content):
            raise ValueError(f"conversation.context_at: got {self.context_at}; the turn is shorter")
        return self

    def messages(self, context: str) -> list[dict[str, str]]:
        """The turns with this context in its place; a turn that holds nothing else is left out with it."""
        filled = []
        for number, turn in enumerate(self.turns):
            text = turn.content
            if number == self.context_turn:
                block = self.context_block.replace(CONTEXT, context) if context.strip() else ""
                text = text[: self.context_at] + block + text[self.context_at :]
                if not text.strip():
                    continue
            filled.append({"role": str(turn.role), "content": text})
        return filled

    @property
    def earlier_answers(self) -> list[str]:
        """The assistant turns before the answer."""
        return [turn.content for turn in self.turns if turn.role == "assistant"]


@dataclass(frozen=True)
class ChatRow:
    """What a row of chat data gives for one sample.

    Attributes:
        number: which of the row's assistant turns is the answer, from 1.
    """

    context: str
    question: str
    answer: str
    conversation: Conversation
    number: int


def read_turns(value: object, name: str = "messages") -> list[Turn]:
    """The turns of a conversation in OpenAI's and TRL's shape (role, content) or ShareGPT's (from, value).

    Args:
        value: a list of turns; the content of a turn is text, or a list of parts that are text.
        name: of the column, for messages.

    Raises:
        ValueError: it is no such list, or a turn is no text: a tool call, an image, an unknown role.
    """
    if not isinstance(value, list) or not value:
        raise ValueError(f"{name}: got {_short(value)}; expected a list of turns, each with `role` and `content`")
    return [_turn(item, f"{name}.{place}") for place, item in enumerate(value)]


def _turn(item: object, place: str) -> Turn:
    if not isinstance(item, dict):
        raise ValueError(f"{place}: got {_short(item)}; expected an object with `role` and `content`")
    who, what = ("role", "content") if "role" in item else ("from", "value")
    if who not in item:
        keys = ", ".join(map(str, item)) or "no key"
        raise ValueError(f"{place}: has {keys}; expected `role` and `content` (or `from` and `value`)")
    role = _OTHER_ROLES.get(str(item[who]), item[who])
    if role not in ROLES:
        known = ", ".join([*ROLES, *_OTHER_ROLES])
        raise ValueError(f"{place}.{who}: got {_short(item[who])}; expected one of {known}")
    if item.get("tool_calls"):
        raise ValueError(f"{place}.tool_calls: a call of a tool; expected text, since only turns of text are read")
    content = item.get(what)
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, dict) else part for part in content]
        texts = [part for part in parts if isinstance(part, str)]
        if len(texts) < len(parts):
            raise ValueError(f"{place}.{what}: got {_short(content)}; expected parts of text, no images or files")
        content = "".join(texts)
    if not isinstance(content, str):
        raise ValueError(f"{place}.{what}: got {_short(content)}; expected text")
    return Turn(role=role, content=content)


@dataclass(frozen=True)
class ContextRule:
    """Where rows of chat data have their context.

    Attributes:
        place: `<NAME>` for the text between such tags, a role for the last turn of that role before the answer (the
            first of `system`), or empty: the row has its context in a field, or has none.
        block: how a field's context is written into the conversation, where it does not stand there already.
    """

    place: str = "<context>"
    block: str = CONTEXT + "\n\n"


def chat_rows(turns: Sequence[Turn], rule: ContextRule, loss: LossChoice, field: str = "") -> list[ChatRow]:
    """The samples of a conversation: one, or with loss `each` one for each assistant turn.

    Turns after the last assistant turn are left out: no answer follows them.

    Args:
        field: the context, where the row has it apart from the turns.

    Raises:
        ValueError: no assistant turn, an empty one, nothing asked before it, or, with loss `all`, a context that comes
            after the first assistant turn.
    """
    answers = [number for number, turn in enumerate(turns) if turn.role == "assistant"]
    if not answers:
        roles = ", ".join(turn.role for turn in turns)
        raise ValueError(f"no assistant turn among {roles}; expected one, as it is what is trained on")
    chosen = answers if loss == "each" else answers[-1:]
    rows = []
    for at in chosen:
        if not turns[at].content.strip():
            raise ValueError(f"turn {at + 1}: an assistant turn without text; expected the answer")
        context, conversation = _cut(turns[:at], rule, field, first=answers[0] if loss == "all" else at)
        if loss == "all":
            conversation = conversation.model_copy(update={"loss": "all"})
            if conversation.context_turn is not None and conversation.context_turn > answers[0]:
                raise ValueError(
                    f"the context is in turn {conversation.context_turn + 1}, after an assistant turn that is trained "
                    "on too; expected it before (`loss: each` makes a sample of each assistant turn, `loss: last` "
                    "trains on the last alone)"
                )
        rows.append(
            ChatRow(context, _question(conversation), turns[at].content.strip(), conversation, answers.index(at) + 1)
        )
    return rows


def _question(conversation: Conversation) -> str:
    """What was said last before the answer, without the context."""
    asked = [turn.content.strip() for turn in conversation.turns if turn.role != "assistant" and turn.content.strip()]
    if not asked:
        raise ValueError("nothing is asked before the assistant turn; expected a user turn with text")
    return asked[-1]


def _cut(turns: Sequence[Turn], rule: ContextRule, field: str, first: int) -> tuple[str, Conversation]:
    """The context and the conversation without it.

    Args:
        first: how many turns may take a field's context.
    """
    if not turns:
        raise ValueError("the conversation begins with an assistant turn; expected what it answers before it")
    if field.strip():
        return _cut_field(turns, rule, field.strip(), first)
    if rule.place.startswith("<"):
        return _cut_span(turns, rule.place[1:-1])
    if rule.place:
        return _cut_turn(turns, rule.place)
    return "", Conversation(turns=list(turns))


def _cut_field(turns: Sequence[Turn], rule: ContextRule, context: str, first: int) -> tuple[str, Conversation]:
    for number in reversed(range(len(turns))):
        at = turns[number].content.find(context)
        if at >= 0:
            return context, _without(turns, number, at, at + len(context), CONTEXT)
    number = max((i for i in range(first) if turns[i].role == "user"), default=0)
    return context, Conversation(turns=list(turns), context_turn=number, context_block=rule.block)


def _cut_span(turns: Sequence[Turn], tag: str) -> tuple[str, Conversation]:
    pattern = re.compile(rf"<{re.escape(tag)}>(.*?)</{re.escape(tag)}>\s*", re.DOTALL)
    for number in reversed(range(len(turns))):
        found = list(pattern.finditer(turns[number].content)) if turns[number].role != "assistant" else []
        if found and found[-1][1].strip():
            span = found[-1]
            context = span[1].strip()
            start = span[0].index(context, len(tag) + 2)
            block = span[0][:start] + CONTEXT + span[0][start + len(context) :]
            return context, _without(turns, number, span.start(), span.end(), block)
    return "", Conversation(turns=list(turns))


def _cut_turn(turns: Sequence[Turn], role: str) -> tuple[str, Conversation]:
    numbers = [number for number, turn in enumerate(turns) if turn.role == role and turn.content.strip()]
    if not numbers:
        return "", Conversation(turns=list(turns))
    number = numbers[0] if role == "system" else numbers[-1]
    text = turns[number].content
    context = text.strip()
    return context, _without(turns, number, 0, len(text), text.replace(context, CONTEXT))


def _without(turns: Sequence[Turn], number: int, start: int, end: int, block: str) -> Conversation:
    turn = turns[number]
    rest = turn.model_copy(update={"content": turn.content[:start] + turn.content[end:]})
    return Conversation(
        turns=[*turns[:number], rest, *turns[number + 1 :]],
        context_turn=number,
        context_at=start,
        context_block=block,
    )


def prompt_turns(prompt: str, system: str, question: str) -> Conversation:
    """A conversation of one question, worded by the user.

    Without a context the paragraph of `{context}` is left out; its line, where the paragraph asks the question too; of
    one line with both `{context}` alone.

    Args:
        prompt: the user turn, with `{question}` and at most one `{context}`.
        system: the system turn; empty for none.
    """
    before, mark, after = prompt.partition(CONTEXT)
    block = CONTEXT
    if mark:
        for border in ("\n\n", "\n"):
            start = before.rfind(border) + len(border) if border in before else 0
            end = after.find(border) + len(border) if border in after else len(after)
            around = before[start:] + after[:end]
            if "{question}" not in around:
                block, before, after = before[start:] + CONTEXT + after[:end], before[:start], after[end:]
                break
    before, after = (part.replace("{question}", question) for part in (before, after))
    first = [Turn(role="system", content=system)] if system.strip() else []
    return Conversation(
        turns=[*first, Turn(role="user", content=before + after)],
        context_turn=len(first) if mark else None,
        context_at=len(before) if mark else 0,
        context_block=block,
    )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
