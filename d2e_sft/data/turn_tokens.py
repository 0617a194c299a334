"""Conversations → tokens, with marks on those of the assistant's turns, by the model's own chat template.

A template that marks what the assistant writes (`{% generation %}`) is believed, so the marks equal those of TRL's
`assistant_only_loss`. Of one without, an assistant turn is what stands behind its prompt, up to the token that ends
the turn. That needs a template which writes a turn alike whatever follows it; one that does not is refused.
"""

from __future__ import annotations

import re
from typing import Any

from d2e_sft.data.chat_template import Messages, end_of_turn_id, rendered
from d2e_sft.util.errors import UserError

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


def marks_turns(tokenizer: Any) -> bool:
    """Whether the tokenizer's chat template marks what the assistant writes."""
    template = getattr(tokenizer, "chat_template", None)
    return isinstance(template, str) and _GENERATION.search(template) is not None


def turn_tokens(tokenizer: Any, messages: Messages, *, last_alone: bool) -> tuple[list[int], list[bool]]:
    """The tokens of a whole conversation, and of each whether it is trained on.

    Args:
        messages: the last one is an assistant's.
        last_alone: trained on is the last assistant turn alone.

    Returns:
        ids and marks, as many; the tokens behind the last marked one are left out, as nothing depends on them.

    Raises:
        UserError: the template leaves an assistant turn out, or writes it otherwise when a turn is added.
    """
    if not tokenizer.is_fast:
        raise UserError(
            f"tokenizer of {tokenizer.name_or_path!r}: a slow one, which does not say where its tokens stand",
            remedy="use the model's fast tokenizer (tokenizer.json)",
        )
    find = _marked if marks_turns(tokenizer) else _found
    ids, marks = find(tokenizer, messages)
    if True not in marks:
        raise _leaves_out(tokenizer, len(messages))
    end = len(marks) - marks[::-1].index(True)
    if last_alone:
        start = _start_of_last(marks[:end])
        marks = [mark and place >= start for place, mark in enumerate(marks)]
    return ids[:end], marks[:end]


def _marked(tokenizer: Any, messages: Messages) -> tuple[list[int], list[bool]]:
    """By the template's own marks."""
    encoded = rendered(
        tokenizer, messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )  # with the masks, transformers finds tokens by the characters that the template marks
    return list(encoded["input_ids"]), [bool(mark) for mark in encoded["assistant_masks"]]


def _found(tokenizer: Any, messages: Messages) -> tuple[list[int], list[bool]]:
    """By where the template writes each assistant turn."""
    text = rendered(tokenizer, messages)
    turns = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    spans = [_span(tokenizer, messages, number, text) for number in turns]
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    marks = [any(end > first and start < last for first, last in spans) for start, end in encoded["offset_mapping"]]
    return list(encoded["input_ids"]), marks


def _span(tokenizer: Any, messages: Messages, number: int, text: str) -> tuple[int, int]:
    """Where in the text an assistant turn stands: from behind its prompt to the end of its end-of-turn token."""
    content = messages[number]["content"].strip()
    prompt = rendered(tokenizer, messages[:number], add_generation_prompt=True)
    alone = rendered(tokenizer, messages[: number + 1])
    start = len(prompt)
    for whole in (alone, text):
        at = whole.find(content, start) if whole.startswith(prompt) else -1
        if at < 0 or whole[start:at].strip():
            if whole is alone and content not in alone:
                raise _leaves_out(tokenizer, number + 1)
            raise _changes(tokenizer, number + 1, prompt, whole)
    end = at + len(content)
    closing = tokenizer.convert_ids_to_tokens(end_of_turn_id(tokenizer))
    behind = text[end:]
    if behind.lstrip().startswith(closing):
        end += behind.index(closing) + len(closing)
    return start, end


def _start_of_last(marks: list[bool]) -> int:
    """Where the run of marked tokens begins that ends the list."""
    start = len(marks)
    while start and marks[start - 1]:
        start -= 1
    return start


def _changes(tokenizer: Any, turn: int, prompt: str, whole: str) -> UserError:
    pairs = enumerate(zip(prompt, whole, strict=False))
    common = next((place for place, (one, other) in pairs if one != other), min(len(prompt), len(whole)))
    return UserError(
        f"tokenizer of {tokenizer.name_or_path!r}: its chat template changes what stands before assistant turn {turn} "
        f"when a turn is added: {prompt[common:][:40]!r} becomes {whole[common:][:40]!r}; loss on all assistant turns "
        "needs a template that keeps it",
        remedy="write `loss: each` (a sample of each assistant turn) or `loss: last` in the data's YAML and build "
        "again, or give the tokenizer a chat template that keeps earlier turns",
    )


def _leaves_out(tokenizer: Any, turn: int) -> UserError:
    return UserError(
        f"tokenizer of {tokenizer.name_or_path!r}: its chat template does not write the text of assistant turn {turn}",
        remedy="use a chat template that writes each message's content as it is",
    )
