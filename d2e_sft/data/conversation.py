"""Conversations and the place of the context in them; each view fills it in, or removes it with the text around it."""

from __future__ import annotations

from typing import Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

Role = Literal["system", "user", "assistant", "tool"]
ROLES: tuple[Role, ...] = get_args(Role)
# The assistant turns that are trained on; `each` makes one row per turn, so no conversation is stored with it.
Loss = Literal["last", "all"]
LossChoice = Literal["last", "all", "each"]
CONTEXT = "{context}"


class Turn(BaseModel):
    """One turn: the speaker and the text."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    role: Role
    content: str


class Conversation(BaseModel):
    """The turns before the answer, with the context cut out.

    Attributes:
        turns: The turns before the assistant turn that is the sample's answer.
        context_turn: The index of the turn with the context, or None.
        context_at: The position of the context in that turn, in characters.
        context_block: The text there, with `{context}` for the context itself.
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
