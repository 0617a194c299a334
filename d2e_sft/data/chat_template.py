"""Conversations → text and tokens, by a model's own chat template.

Encoder-decoder models may have none (T5): their prompts are plain text, which the tokenizer ends as it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jinja2.exceptions import TemplateError

from d2e_sft.util.errors import UserError

Messages = list[dict[str, str]]


class ChatEncoder:
    """Turns conversations into the tokens of a prompt.

    Args:
        tokenizer: a transformers tokenizer, with a chat template unless the model is an encoder-decoder.
        encoder_decoder: the prompt goes to an encoder, the answer to a decoder.
        as_text: leave the chat template out, where there is one: a prompt is the text of its messages, which a base
            model continues.

    Attributes:
        plain: no chat template is used.
        end_of_turn: the token that ends an answer.

    Raises:
        UserError: the tokenizer of a causal model has no chat template, or no token ends an answer.
    """

    def __init__(self, tokenizer: Any, *, encoder_decoder: bool = False, as_text: bool = False) -> None:
        has_template = bool(getattr(tokenizer, "chat_template", None))
        if not (encoder_decoder or as_text or has_template):
            raise UserError(
                f"tokenizer of {tokenizer.name_or_path!r}: has no chat template; expected an instruction-tuned model",
                remedy="use the model's -Instruct or -Chat variant, or add chat_template.jinja to its folder",
            )
        self.plain = as_text or not has_template
        self.end_of_turn = _end_of_text_id(tokenizer) if self.plain else end_of_turn_id(tokenizer)
        self._tokenizer = tokenizer

    def ids(self, conversations: Sequence[Messages]) -> list[list[int]]:
        """The prompt of each conversation, up to where the answer begins; all at once, which is quick."""
        texts = [plain_text(turns) if self.plain else chat_text(self._tokenizer, turns) for turns in conversations]
        # The template writes the BOS token itself where the model wants one; adding special tokens would double it.
        return list(self._tokenizer(texts, add_special_tokens=self.plain)["input_ids"]) if texts else []


def end_of_turn_id(tokenizer: Any) -> int:
    """The token with which the chat template closes an assistant's turn (`eos_token_id` where it shows none)."""
    probe = "reply"
    text = _apply_template(
        tokenizer, [{"role": "user", "content": "question"}, {"role": "assistant", "content": probe}]
    )
    # An end-of-turn token may be a special added token without being named among the special tokens.
    added = {token for token, entry in tokenizer.added_tokens_decoder.items() if entry.special}
    special = added | set(tokenizer.all_special_ids)
    if probe not in text:
        raise UserError(
            f"tokenizer of {tokenizer.name_or_path!r}: its chat template leaves the messages out",
            remedy="use a chat template that writes each message's content",
        )
    tail = tokenizer(text[text.rindex(probe) + len(probe) :], add_special_tokens=False)["input_ids"]
    closing: int | None = next((token for token in tail if token in special), tokenizer.eos_token_id)
    return _end_of_text_id(tokenizer) if closing is None else closing


def merged_stop_ids(configured: int | list[int] | None, end_of_turn: int | None) -> list[int]:
    """The end-of-turn token and what a generation config names as `eos_token_id`, sorted."""
    listed = configured if isinstance(configured, list) else [configured]
    return sorted({token for token in (end_of_turn, *listed) if token is not None})


def pad_id(tokenizer: Any) -> int:
    """An id to fill padded places with; it is always masked, so any will do."""
    return tokenizer.pad_token_id if tokenizer.pad_token_id is not None else (tokenizer.eos_token_id or 0)


def chat_text(tokenizer: Any, messages: Messages) -> str:
    """The messages by the tokenizer's chat template, up to where the assistant's answer begins."""
    text: str = rendered(tokenizer, messages, add_generation_prompt=True)
    return text


def rendered(tokenizer: Any, messages: Messages, **options: Any) -> Any:
    """What the tokenizer's chat template makes of the messages: text, or tokens where the options ask for them.

    Raises:
        UserError: the template refuses them.
    """
    try:
        return _render_chat(tokenizer, messages, **options)
    except TemplateError:
        return _apply_template(tokenizer, merged_system(messages), **options)


def merged_system(messages: Messages) -> Messages:
    """The messages for a template that refuses a system message (Gemma's first ones): it opens the first user's."""
    if messages[0]["role"] != "system":
        return messages
    return [{"role": "user", "content": plain_text(messages[:2])}, *messages[2:]]


def plain_text(messages: Messages) -> str:
    """The messages' texts alone, an empty line between them."""
    return "\n\n".join(message["content"] for message in messages)


def _end_of_text_id(tokenizer: Any) -> int:
    end: int | None = tokenizer.eos_token_id
    if end is None:
        raise UserError(
            f"tokenizer of {tokenizer.name_or_path!r}: has neither an end-of-turn nor an end-of-text token"
        )
    return end


def _apply_template(tokenizer: Any, messages: Messages, **options: Any) -> Any:
    try:
        return _render_chat(tokenizer, messages, **options)
    except TemplateError as error:
        raise UserError(
            f"tokenizer of {tokenizer.name_or_path!r}: its chat template refuses the messages ({error})",
            remedy="use a chat template that takes a user's and an assistant's message",
        ) from None


def _render_chat(tokenizer: Any, messages: Messages, **options: Any) -> Any:
    # enable_thinking: hybrid models (Qwen3) are to answer at once; other templates ignore the name.
    return tokenizer.apply_chat_template(messages, **{"tokenize": False, "enable_thinking": False, **options})
