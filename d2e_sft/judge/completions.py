"""Read the bytes that an endpoint sends: a chat completion, or why it refused."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from d2e_sft.judge.messages import Reply


class _Message(BaseModel):
    content: str | None = None


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None


class _Completion(BaseModel):
    choices: list[_Choice] = Field(min_length=1)
    usage: Any = None


def read_completion(body: bytes) -> Reply | None:
    """Return the reply in the bytes of a chat completion; None if they are anything else."""
    try:
        completion = _Completion.model_validate_json(body)
    except ValidationError:
        return None
    choice = completion.choices[0]
    return Reply(
        text=choice.message.content or "",
        prompt_tokens=_count(completion.usage, "prompt_tokens"),
        completion_tokens=_count(completion.usage, "completion_tokens"),
        cut_off=choice.finish_reason == "length",
    )


def _count(usage: Any, name: str) -> int | None:
    """Return a number of tokens; None, so that it is guessed, for anything odd and for 0, which some proxies send."""
    value = usage.get(name) if isinstance(usage, dict) else None
    return value if type(value) is int and value > 0 else None


def server_message(body: bytes) -> str:
    """Return what a refusal says, on one line: OpenAI's form, the forms of other servers, or the whole body."""
    text = body.decode("utf-8", errors="replace")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return " ".join(text.split())
    while isinstance(content, dict):
        content = next((content[key] for key in ("error", "message", "detail") if content.get(key)), str(content))
    return " ".join(str(content).split())
