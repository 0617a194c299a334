"""The wording of the prompts, which is data: `prompts/NAME.yaml`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from d2e_sft.data.chat_template import Messages
from d2e_sft.util.files import load_yaml

_FOLDER = Path(__file__).parent / "prompts"


@cache
def wording(name: str) -> dict[str, Any]:
    """The content of `prompts/NAME.yaml`."""
    content: dict[str, Any] = load_yaml((_FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    return content


def turns(*texts: str) -> Messages:
    """Messages of user and assistant in turn; an empty reply becomes `…`, since endpoints refuse empty messages."""
    roles = ("user", "assistant")
    return [{"role": roles[place % 2], "content": (text.strip() and text) or "…"} for place, text in enumerate(texts)]


def system(text: str) -> Messages:
    """The system message alone."""
    return [{"role": "system", "content": text}]
