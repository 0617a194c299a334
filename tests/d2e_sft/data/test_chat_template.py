"""Chat templates: tokens are not doubled, and templates without a system role, or none at all, are dealt with."""

from __future__ import annotations

import pytest

from d2e_sft.config.recipe import View
from d2e_sft.data.chat_template import BEGUN, CUED, LINES, ChatEncoder, Continuation, cut
from d2e_sft.data.prompts import PromptSet, load_prompt_set
from d2e_sft.data.views import ViewEncoder
from d2e_sft.util.errors import UserError
from tests.tiny import make_sample, tiny_tokenizer

VIEWS: tuple[View, ...] = ("original", "imagined", "refined")


@pytest.fixture(scope="module")
def prompts() -> PromptSet:
    return load_prompt_set("default")


def test_bos_is_not_doubled_when_the_template_writes_it(prompts: PromptSet) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"bos_token": "<|bos|>"})
    tokenizer.chat_template = "{{ bos_token }}" + tokenizer.chat_template
    encoded = ViewEncoder(tokenizer, prompts, VIEWS).encode(make_sample())
    for prompt in encoded.prompts.values():
        assert prompt.count(tokenizer.bos_token_id) == 1


def test_a_template_without_a_system_role_gets_one_user_message(prompts: PromptSet) -> None:
    tokenizer = tiny_tokenizer()
    refusal = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    tokenizer.chat_template = refusal + tokenizer.chat_template
    text = tokenizer.decode(ViewEncoder(tokenizer, prompts, VIEWS).prompt_ids(make_sample(), "original"))
    assert "<|system|>" not in text
    assert text.startswith("<|user|>You judge how events relate.")


def test_a_template_that_leaves_system_messages_out_gets_one_user_message(prompts: PromptSet) -> None:
    tokenizer = tiny_tokenizer()
    turn = "<|{{ m.role }}|>{{ m.content }}<|end|>"
    tokenizer.chat_template = "{% for m in messages if m.role != 'system' %}" + turn + "{% endfor %}"
    text = tokenizer.decode(ViewEncoder(tokenizer, prompts, VIEWS).prompt_ids(make_sample(), "original"))
    instruction = prompts.messages(make_sample(), "original")[0]["content"]
    assert text.startswith(f"<|user|>{instruction}")


def test_a_template_with_the_date_gives_the_same_prompt_on_every_day() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{{ strftime_now('%d %b %Y, %B') }}" + str(tokenizer.chat_template)
    (ids,) = ChatEncoder(tokenizer).ids([[{"role": "user", "content": "x"}]])
    assert tokenizer.decode(ids).startswith("26 Jul 2024, July<|user|>x")


def test_a_tokenizer_without_a_chat_template_is_refused(prompts: PromptSet) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(UserError, match="has no chat template"):
        ViewEncoder(tokenizer, prompts, VIEWS)


DIALOGUE = [
    {"role": role, "content": content}
    for role, content in (("system", "Judge."), ("user", "Wet?"), ("assistant", "yes"), ("user", "Dry =\nor?"))
]


@pytest.mark.parametrize(
    ("style", "text"),
    [
        (CUED, "Judge.\n\nWet?\nAnswer: yes\n\nDry =\nor?\nAnswer:"),
        (LINES, "Judge.\n\nWet?\nyes\n\nDry =\nor?"),
        (BEGUN, "Judge.\n\nWet? yes\n\nDry =\nor?"),
        (Continuation("", comment="# "), "# Judge.\n\nWet?\nyes\n\nDry =\nor?"),
    ],
)
def test_turns_become_one_text_up_to_where_the_answer_begins(style: Continuation, text: str) -> None:
    assert style.shaped(DIALOGUE, "chat") == DIALOGUE
    assert style.shaped(DIALOGUE, "completion") == [{"role": "user", "content": text}]
    after = text.partition("\n\n")[2]
    assert style.shaped(DIALOGUE, "one_turn") == [DIALOGUE[0], {"role": "user", "content": after}]


@pytest.mark.parametrize(
    ("output", "stops", "answer"),
    [(" yes\n\nNo", ["\n\n"], " yes"), ("a\nB:c", ["\n\n", "\nB:"], "a"), ("a\nb", ["\n\n"], "a\nb"), ("a", [], "a")],
)
def test_an_output_ends_at_the_first_text_that_ends_an_answer(output: str, stops: list[str], answer: str) -> None:
    assert cut(output, stops) == answer


def test_a_text_is_continued_without_the_chat_template() -> None:
    tokenizer = tiny_tokenizer()
    encoder = ChatEncoder(tokenizer, as_text=True)
    turns = [{"role": "user", "content": "Rain fell."}, {"role": "user", "content": "Then the river"}]
    assert [tokenizer.decode(ids) for ids in encoder.ids([turns])] == ["Rain fell.\n\nThen the river"]
    assert encoder.end_of_turn == tokenizer.eos_token_id
    tokenizer.chat_template = None
    assert ChatEncoder(tokenizer, as_text=True).ids([turns]) == encoder.ids([turns])
