"""How a model is opened for a conversation: as it was trained, unless the call says otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.chat.conversation import Wording
from d2e_sft.chat.open import ChatOptions, open_conversation
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.util.errors import UserError
from tests.d2e_sft.hub.runs import make_run
from tests.tiny import save_tiny_model

QA = load_prompt_set("default").zero_shot["qa"]


def test_a_run_is_asked_and_decoded_as_its_recipe_says(tmp_path: Path) -> None:
    run = str(make_run(tmp_path, "llama", "eval.alpha=0.3"))
    conversation = open_conversation(run, ChatOptions())
    assert conversation.wording == Wording(QA.system, QA.context, QA.user)
    assert (conversation.decoding.alpha, conversation.decoding.max_new_tokens) == (0.3, 12)
    given = ChatOptions(alpha=0.9, max_new_tokens=5, wording="none", system="Be brief.", dtype="bfloat16")
    conversation = open_conversation(run, given)
    assert conversation.wording == Wording(system="Be brief.")
    assert (conversation.decoding.alpha, conversation.decoding.max_new_tokens) == (0.9, 5)
    assert str(conversation.loaded.model.dtype) == "torch.bfloat16"


def test_another_model_gets_questions_as_they_are(tmp_path: Path) -> None:
    model = str(save_tiny_model(tmp_path / "model"))
    conversation = open_conversation(model, ChatOptions())
    assert conversation.wording == Wording()
    assert conversation.decoding.alpha == 0.5
    assert open_conversation(model, ChatOptions(wording="qa")).wording.system == QA.system
    with pytest.raises(UserError, match="--prompt-set default: has no effect on questions that are sent as they are"):
        open_conversation(model, ChatOptions(prompt_set="default"))
