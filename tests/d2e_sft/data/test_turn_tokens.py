"""What of a conversation is trained on: as TRL has it by marked templates, and the same by templates without marks."""

from __future__ import annotations

from itertools import groupby

import pytest

from d2e_sft.data.chat_template import marks_turns, turn_tokens
from d2e_sft.util.errors import UserError
from tests.chat_templates import CONVERSATION, FORGETS_THOUGHTS, NAMES, TRAINED, template, template_tokenizer
from tests.tiny import tiny_tokenizer


def runs(marks: list[bool]) -> list[tuple[int, int]]:
    found, start = [], 0
    for mark, run in groupby(marks):
        length = len(list(run))
        if mark:
            found.append((start, start + length))
        start += length
    return found


@pytest.mark.parametrize("name", NAMES)
def test_marked_templates_train_on_what_trl_trains_on(name: str) -> None:
    tokenizer = template_tokenizer(template(name, marked=True))
    ids, marks = turn_tokens(tokenizer, CONVERSATION, only_last=False)
    assert marks_turns(tokenizer)
    assert runs(marks) == TRAINED[name]
    assert ids == tokenizer.apply_chat_template(CONVERSATION, return_dict=True)["input_ids"][: len(ids)]
    assert runs(turn_tokens(tokenizer, CONVERSATION, only_last=True)[1]) == TRAINED[name][-1:]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "chatml, wide"])
def test_without_marks_the_same_tokens_are_found(name: str) -> None:
    tokenizer = template_tokenizer(template(name, marked=False))
    assert not marks_turns(tokenizer)
    assert runs(turn_tokens(tokenizer, CONVERSATION, only_last=False)[1]) == TRAINED[name]


def test_without_marks_line_ends_around_an_answer_are_not_trained_on() -> None:
    tokenizer = template_tokenizer(template("chatml, wide", marked=False))
    found = runs(turn_tokens(tokenizer, CONVERSATION, only_last=False)[1])
    assert found == [(start + 1, end - 1) for start, end in TRAINED["chatml, wide"]]


def test_a_system_message_that_is_refused_opens_the_first_user_turn() -> None:
    tokenizer = template_tokenizer(template("model", marked=False))
    ids, marks = turn_tokens(tokenizer, [{"role": "system", "content": "Be brief."}, *CONVERSATION], only_last=False)
    added = len("Be brief.\n\n")
    assert runs(marks) == [(start + added, end + added) for start, end in TRAINED["model"]]
    assert tokenizer.decode(ids).startswith("<|begin|><|start|>user\nBe brief.\n\nThe policy")


def test_a_template_that_changes_earlier_turns_is_refused() -> None:
    tokenizer = template_tokenizer(FORGETS_THOUGHTS)
    with pytest.raises(UserError, match=r"omits assistant turn 2, or changes the text before it[\s\S]*loss: each"):
        turn_tokens(tokenizer, CONVERSATION, only_last=False)
    assert runs(turn_tokens(tokenizer, CONVERSATION[:2], only_last=False)[1]), "of one answer nothing changes"


def test_a_template_that_leaves_an_answer_out_is_refused() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{% if not loop.last %}{{ m.content }}<|end|>{% endif %}{% endfor %}"
    )
    with pytest.raises(UserError, match="omits assistant turn 2"):
        turn_tokens(tokenizer, CONVERSATION[:2], only_last=False)
