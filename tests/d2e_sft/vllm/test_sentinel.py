"""The sentinel is a token that no answer holds."""

from __future__ import annotations

import pytest
from tokenizers import AddedToken

from d2e_sft.util.errors import UserError
from d2e_sft.vllm.sentinel import choose_sentinel
from tests.tiny import VOCAB_SIZE, tiny_tokenizer


def test_a_row_of_the_vocabulary_without_a_token_comes_first() -> None:
    assert choose_sentinel(tiny_tokenizer(), VOCAB_SIZE + 8, {1}) == VOCAB_SIZE + 7


def test_a_token_that_is_named_as_unused_comes_next() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|reserved_token_0|>", "<|tool|>"]})
    assert choose_sentinel(tokenizer, len(tokenizer), {1}) == tokenizer.convert_tokens_to_ids("<|reserved_token_0|>")


def test_then_a_special_token_that_the_chat_template_does_not_write_and_that_ends_nothing() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": [AddedToken("<|spare|>", special=True)]})
    spare = tokenizer.convert_tokens_to_ids("<|spare|>")
    assert choose_sentinel(tokenizer, len(tokenizer), {1}) == spare
    assert choose_sentinel(tokenizer, len(tokenizer), {1, spare}) not in {1, spare}


def test_a_vocabulary_without_a_free_token_is_refused_with_the_way_out() -> None:
    tokenizer = tiny_tokenizer()
    with pytest.raises(UserError, match="sentinel=ID"):
        choose_sentinel(tokenizer, VOCAB_SIZE, set(range(VOCAB_SIZE)))
