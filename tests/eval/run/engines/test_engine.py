"""What every task has: a title, and token prompts that fit the model."""

from __future__ import annotations

import pytest

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.util.errors import UserError
from eval.run.engines.conversation_task import Conversation, ConversationTask
from tests.tiny import tiny_tokenizer


def task(alpha: float = 0.5, *, without_context: bool = False) -> ConversationTask:
    full, bare = ([{"role": "user", "content": text}] for text in ("It rained. Is it wet?", "Is it wet?"))
    return ConversationTask(
        name="wet",
        conversations=[Conversation("d", "one", full, bare)],
        decoding=DecodingConfig(alpha=alpha, max_new_tokens=5),
        without_context=without_context,
    )


def test_what_is_not_subtracted_is_not_encoded() -> None:
    debiased, plain = (task(alpha).tokens(tiny_tokenizer(), encoder_decoder=False, limit=None) for alpha in (0.5, 0.0))
    assert debiased.imagined is not None
    assert plain.imagined is None
    assert plain.originals == debiased.originals
    assert len(debiased.imagined[0]) < len(debiased.originals[0])


def test_without_context_the_imagined_prompt_is_answered() -> None:
    debiased = task().tokens(tiny_tokenizer(), encoder_decoder=False, limit=None)
    bare = task(0.0, without_context=True).tokens(tiny_tokenizer(), encoder_decoder=False, limit=None)
    assert bare.originals == debiased.imagined


def test_only_a_decoder_only_model_has_to_hold_the_answer_too() -> None:
    length = len(task().tokens(tiny_tokenizer(), encoder_decoder=False, limit=None).originals[0])
    task().tokens(tiny_tokenizer(), encoder_decoder=False, limit=length + 5)
    task().tokens(tiny_tokenizer(), encoder_decoder=True, limit=length)
    with pytest.raises(UserError, match=f"prompts may have {length - 1} tokens beside 5 new ones"):
        task().tokens(tiny_tokenizer(), encoder_decoder=False, limit=length + 4)
