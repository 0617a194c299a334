"""Conversations → tokens, with marks on the tokens of assistant turns, by the chat template of a model.

Marks of the template (`{% generation %}`) are used, as by TRL's `assistant_only_loss`. Without them, an assistant turn
is the text from its prompt to its end-of-turn token, which needs a template that renders a turn whatever follows.
"""

from __future__ import annotations

import re
from typing import Any

from d2e_sft.data.chat_template import Messages, end_of_turn_id, rendered
from d2e_sft.util.errors import UserError

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


def marks_turns(tokenizer: Any) -> bool:
    """Whether the chat template marks the text of the assistant."""
    template = getattr(tokenizer, "chat_template", None)
    return isinstance(template, str) and _GENERATION.search(template) is not None


def turn_tokens(tokenizer: Any, messages: Messages, *, only_last: bool) -> tuple[list[int], list[bool]]:
    """Return the tokens of a conversation and whether each is trained on, up to the last trained token.

    Its last turn is an assistant's; `only_last` trains only on that one. Raises UserError if the template omits an
    assistant turn or changes it when a turn is added, or the tokenizer is slow.
    """
    if not tokenizer.is_fast:
        raise UserError(
            f"tokenizer of {tokenizer.name_or_path!r}: a slow one, which does not report the positions of tokens",
            remedy="use the model's fast tokenizer (tokenizer.json)",
        )
    if marks_turns(tokenizer):
        options = {"tokenize": True, "return_dict": True, "return_assistant_tokens_mask": True}
        encoded = rendered(tokenizer, messages, **options)
        ids, marks = list(encoded["input_ids"]), [bool(mark) for mark in encoded["assistant_masks"]]
    else:
        ids, marks = _found(tokenizer, messages)
    if True not in marks:
        raise _unfit(tokenizer, len(messages))
    end = len(marks) - marks[::-1].index(True)
    if only_last:
        start = end
        while start and marks[start - 1]:
            start -= 1
        marks = [place >= start for place in range(end)]
    return ids[:end], marks[:end]


def _found(tokenizer: Any, messages: Messages) -> tuple[list[int], list[bool]]:
    """Find each assistant turn in the rendered text."""
    text = rendered(tokenizer, messages)
    turns = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    spans = [_span(tokenizer, messages, number, text) for number in turns]
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    marks = [any(end > first and start < last for first, last in spans) for start, end in encoded["offset_mapping"]]
    return list(encoded["input_ids"]), marks


def _span(tokenizer: Any, messages: Messages, number: int, text: str) -> tuple[int, int]:
    """Return where in the text an assistant turn begins (after its prompt) and ends (with its end-of-turn token)."""
    content = messages[number]["content"].strip()
    prompt = rendered(tokenizer, messages[:number], add_generation_prompt=True)
    cut = rendered(tokenizer, messages[: number + 1])
    start = len(prompt)
    for whole in (cut, text):
        at = whole.find(content, start) if whole.startswith(prompt) else -1
        if at < 0 or whole[start:at].strip():
            raise _unfit(tokenizer, number + 1)
    end = at + len(content)
    closing = tokenizer.convert_ids_to_tokens(end_of_turn_id(tokenizer))
    if text[end:].lstrip().startswith(closing):
        end = text.index(closing, end) + len(closing)
    return start, end


def _unfit(tokenizer: Any, turn: int) -> UserError:
    return UserError(
        f"tokenizer of {tokenizer.name_or_path!r}: its chat template omits assistant turn {turn}, or changes the text "
        "before it when a turn is added",
        remedy="use a chat template that writes each message as it is, whatever follows; or write `loss: each` (one "
        "sample per assistant turn) or `loss: last` in the data's YAML and build again",
    )
