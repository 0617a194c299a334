"""Conversations, the place of the context in them, and rows of chat data in the usual shapes."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from d2e_sft.util.errors import shortened

Role = Literal["system", "user", "assistant", "tool"]
ROLES: tuple[Role, ...] = get_args(Role)
# The assistant turns that are trained on; `each` makes one row per turn, so no conversation is stored with it.
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
    model_config = ConfigDict(extra="forbid", frozen=True)

    role: Role
    content: str


class Conversation(BaseModel):
    """The turns before the sample's answer, with the context cut out.

    Attributes:
        context_turn: The index of the turn with the context, or None.
        context_at: The position of the context in that turn, in characters.
        context_block: The text there, with `{context}`; a view fills the context in, or omits the whole text.
        loss: `last` trains on the answer only, `all` on the earlier assistant turns too.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    turns: list[Turn] = Field(min_length=1)
    context_turn: int | None = None
    context_at: int = 0
    context_block: str = CONTEXT
    loss: Loss = "last"

    @model_validator(mode="after")
    def _place_exists(self) -> Self:
        if self.context_block.count(CONTEXT) != 1:
            raise ValueError(f"conversation.context_block: got {self.context_block!r}; expected one {CONTEXT} in it")
        lengths = {number: len(turn.content) for number, turn in enumerate(self.turns)}
        if self.context_turn is not None and not 0 <= self.context_at <= lengths.get(self.context_turn, -1):
            raise ValueError(
                f"conversation.context_turn, context_at: got {self.context_turn}, {self.context_at}; expected the "
                "index of a turn and a position in it"
            )
        return self

    def messages(self, context: str) -> list[dict[str, str]]:
        """Return the turns with this context in its place, without a turn that would be empty."""
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


def prompt_turns(prompt: str, system: str, question: str) -> Conversation:
    """Return a conversation of one question, in the user's wording.

    Without a context, the paragraph with `{context}` is omitted. If that paragraph also has the question, only the
    line is omitted; if the line has it too, only `{context}`.

    The prompt has `{question}` and at most one `{context}`; the system turn may be empty.
    """
    before, mark, after = prompt.partition(CONTEXT)
    block = CONTEXT
    if mark:
        for border in ("\n\n", "\n"):
            start = before.rfind(border) + len(border) if border in before else 0
            end = after.find(border) + len(border) if border in after else len(after)
            passage = before[start:] + after[:end]
            if "{question}" not in passage:
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


@dataclass(frozen=True)
class ChatRow:
    """Fields of an `EventSample` of a conversation."""

    context: str
    question: str
    answers: list[str]
    conversation: Conversation


def read_turns(value: object, name: str = "messages") -> list[Turn]:
    """Read a conversation in the shape of OpenAI and TRL (role, content) or ShareGPT (from, value).

    Content is text or a list of text parts. Raises ValueError, with the column's `name`, for anything else, such as
    a tool call, an image or an unknown role.
    """
    if not isinstance(value, list) or not value:
        raise ValueError(f"{name}: got {shortened(value)}; expected a list of turns, each with `role` and `content`")
    return [_turn(item, f"{name}.{place}") for place, item in enumerate(value)]


def _turn(item: object, place: str) -> Turn:
    if not isinstance(item, dict) or not {"role", "from"} & item.keys():
        raise ValueError(f"{place}: got {shortened(item)}; expected an object with `role` and `content`")
    role_key, content_key = ("role", "content") if "role" in item else ("from", "value")
    role = _OTHER_ROLES.get(str(item[role_key]), item[role_key])
    if role not in ROLES:
        known = ", ".join([*ROLES, *_OTHER_ROLES])
        raise ValueError(f"{place}.{role_key}: got {shortened(item[role_key])}; expected one of {known}")
    if item.get("tool_calls"):
        raise ValueError(f"{place}.tool_calls: a tool call; only text turns are supported")
    content = item.get(content_key)
    parts = content if isinstance(content, list) else [content]
    texts: list[Any] = [part.get("text") if isinstance(part, dict) else part for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{place}.{content_key}: got {shortened(content)}; expected text, without images or files")
    return Turn(role=role, content="".join(texts))


@dataclass(frozen=True)
class ContextRule:
    """Where rows of chat data have their context.

    Attributes:
        place: `<NAME>` for the text between such tags, or a role for the last turn of that role (the first `system`
            turn). Empty if the context is a field of the row or missing.
        block: how a field's context is inserted, if no turn quotes it.
    """

    place: str = "<context>"
    block: str = CONTEXT + "\n\n"


def chat_rows(turns: Sequence[Turn], rule: ContextRule, loss: LossChoice, field: str = "") -> list[ChatRow]:
    """Return the samples of a conversation: one, or with loss `each` one per assistant turn.

    Turns after the last assistant turn are dropped. `field` is the context, if it is a field of the row.
    Raises ValueError for no assistant turn, an empty one, no question before it, or, with loss `all`, a context after
    the first assistant turn.
    """
    answers = [number for number, turn in enumerate(turns) if turn.role == "assistant"]
    if not answers:
        roles = ", ".join(turn.role for turn in turns)
        raise ValueError(f"no assistant turn among {roles}; expected one to train on")
    rows = []
    for i in answers if loss == "each" else answers[-1:]:
        if not turns[i].content.strip():
            raise ValueError(f"turn {i + 1}: an assistant turn without text; expected the answer")
        if not i:
            raise ValueError("the conversation begins with an assistant turn; expected a user turn before it")
        context, conversation = _cut(turns[:i], rule, field.strip(), first=answers[0] if loss == "all" else i)
        if loss == "all":
            conversation = conversation.model_copy(update={"loss": "all"})
            if conversation.context_turn is not None and conversation.context_turn > answers[0]:
                raise ValueError(
                    f"the context is in turn {conversation.context_turn + 1}, after an assistant turn that is trained "
                    "on; expected it before (`loss: each` makes one sample per assistant turn, `loss: last` trains "
                    "only on the last)"
                )
        texts = [turn.content.strip() for turn in conversation.turns if turn.role != "assistant"]
        if not any(texts):
            raise ValueError("no question before the assistant turn; expected a user turn with text")
        question = [text for text in texts if text][-1]
        rows.append(ChatRow(context, question, [turns[i].content.strip()], conversation))
    return rows


def _cut(turns: Sequence[Turn], rule: ContextRule, field: str, first: int) -> tuple[str, Conversation]:
    """Return the context and the conversation without it; a field's context goes into one of the `first` turns."""
    if field:
        quoting = [number for number, turn in enumerate(turns) if field in turn.content]
        # An answer that repeats the context is part of what was said, unless it is where the context is given.
        quoting = [number for number in quoting if turns[number].role != "assistant"] or quoting[-1:]
        if (quotations := sum(turns[number].content.count(field) for number in quoting)) > 1:
            places = f"turn{'s' * (len(quoting) > 1)} {' and '.join(str(number + 1) for number in quoting)}"
            raise ValueError(
                f"{places}: {quotations} quotations of the context; expected one, which the imagined view leaves out"
            )
        if quoting:
            start = turns[quoting[0]].content.index(field)
            return field, _without(turns, quoting[0], (start, start + len(field)), CONTEXT)
        if rule.place.startswith("<") and _cut_span(turns, rule.place[1:-1])[0]:
            raise ValueError(f"a context of its own, and another one between {rule.place} tags; expected one of them")
        number = max((i for i in range(first) if turns[i].role == "user"), default=0)
        return field, Conversation(turns=list(turns), context_turn=number, context_block=rule.block)
    if rule.place.startswith("<"):
        return _cut_span(turns, rule.place[1:-1])
    numbers = [number for number, turn in enumerate(turns) if turn.role == rule.place and turn.content.strip()]
    if not numbers:
        return "", Conversation(turns=list(turns))
    number = numbers[0] if rule.place == "system" else numbers[-1]
    text = turns[number].content
    context = text.strip()
    return context, _without(turns, number, (0, len(text)), text.replace(context, CONTEXT))


def _cut_span(turns: Sequence[Turn], tag: str) -> tuple[str, Conversation]:
    pattern = re.compile(rf"<{re.escape(tag)}>(.*?)</{re.escape(tag)}>\s*", re.DOTALL)
    for number in reversed(range(len(turns))):
        spans = list(pattern.finditer(turns[number].content)) if turns[number].role != "assistant" else []
        if spans and (context := spans[-1][1].strip()):
            if len(spans) > 1:
                raise ValueError(
                    f"turn {number + 1}: {len(spans)} <{tag}> spans; expected one around all of the context"
                )
            span = spans[-1]
            start = span[0].index(context, len(tag) + 2)
            block = span[0][:start] + CONTEXT + span[0][start + len(context) :]
            return context, _without(turns, number, span.span(), block)
        if not spans and f"<{tag}>" in turns[number].content and turns[number].role != "assistant":
            raise ValueError(f"turn {number + 1}: <{tag}> without </{tag}>; expected both around the context")
    return "", Conversation(turns=list(turns))


def _without(turns: Sequence[Turn], number: int, span: tuple[int, int], block: str) -> Conversation:
    turn, (start, end) = turns[number], span
    rest = turn.model_copy(update={"content": turn.content[:start] + turn.content[end:]})
    kept = [*turns[:number], rest, *turns[number + 1 :]]
    return Conversation(turns=kept, context_turn=number, context_at=start, context_block=block)
