"""The token that ends a row which finds itself alone: one that no answer holds.

It is barred from every debiased choice, so a sentinel in an output is always a sentinel. Barring costs nothing if the
token is one that the model never means: a row of the vocabulary without a token, or a special token without a use.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from d2e_sft.util.errors import UserError

_UNUSED = re.compile(r"reserved|unused|extra_id|placeholder|dummy", re.IGNORECASE)


def choose_sentinel(tokenizer: Any, vocab_size: int, stops: Collection[int]) -> int:
    """A token id for `PairedRow.sentinel`.

    Args:
        tokenizer: a transformers tokenizer.
        vocab_size: how many logits the model has.
        stops: tokens that end an answer; none of them is chosen.

    Raises:
        UserError: every token of the vocabulary has a use.
    """
    named = set(tokenizer.get_vocab().values())
    for token in range(vocab_size - 1, -1, -1):
        if token not in named and token not in stops:
            return token
    template = str(getattr(tokenizer, "chat_template", None) or "")
    special = {entry.content: token for token, entry in tokenizer.added_tokens_decoder.items() if entry.special}
    free = [
        (text, token)
        for text, token in sorted(special.items(), key=lambda item: -item[1])
        if token not in stops and token < vocab_size
    ]
    # Best first: named as unused; neither in the template nor with a role of its own; not in the template; any.
    roles = {tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token, tokenizer.unk_token}
    for accept in (
        lambda text: _UNUSED.search(text) is not None,
        lambda text: text not in template and text not in roles,
        lambda text: text not in template,
        lambda text: True,
    ):
        for text, token in free:
            if accept(text):
                return token
    raise UserError(
        f"tokenizer of {getattr(tokenizer, 'name_or_path', '?')!r}: has no special token besides those that end an "
        "answer, and debiased decoding in vLLM needs one that no answer holds",
        remedy="name a token that answers never hold: sentinel=ID",
    )
