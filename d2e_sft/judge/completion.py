"""What the bytes of a server's answer say: a chat completion, or a message about what went wrong."""

from __future__ import annotations

import json

from pydantic import BaseModel, Field, ValidationError

from d2e_sft.judge.messages import Reply


class _Message(BaseModel):
    content: str | None = None


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None


class _Tokens(BaseModel):
    prompt_tokens: int | None = Field(default=None, ge=0)
    completion_tokens: int | None = Field(default=None, ge=0)


class _Completion(BaseModel):
    choices: list[_Choice] = Field(min_length=1)
    usage: _Tokens | None = None


def read_completion(body: bytes) -> Reply | None:
    """The reply in the bytes of a chat completion; None if they are anything else."""
    try:
        completion = _Completion.model_validate_json(body)
    except ValidationError:
        return None
    choice, tokens = completion.choices[0], completion.usage or _Tokens()
    return Reply(
        text=choice.message.content or "",
        prompt_tokens=tokens.prompt_tokens,
        completion_tokens=tokens.completion_tokens,
        cut_off=choice.finish_reason == "length",
    )


def server_message(body: bytes) -> str:
    """What a refusal says in words, on one line: OpenAI's form, the forms of others, else the body as it is."""
    text = body.decode("utf-8", errors="replace")
    try:
        content = json.loads(text)
    except ValueError:
        return " ".join(text.split())
    while isinstance(content, dict):
        content = next((content[key] for key in ("error", "message", "detail") if content.get(key)), str(content))
    return " ".join(str(content).split())
