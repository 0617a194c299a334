"""Conversations, chat templates that are tried out first, and the tokens of each turn."""

import os
import time
from itertools import groupby
from pathlib import Path

import pytest

from d2e_sft.config.recipe import View
from d2e_sft.data import template_trial
from d2e_sft.data.chat_template import (
    BEGUN,
    CUED,
    LINES,
    ChatEncoder,
    Continuation,
    cut,
    marks_turns,
    rendered,
    turn_tokens,
)
from d2e_sft.data.conversation import ContextRule, Turn, chat_rows, prompt_turns
from d2e_sft.data.prompts import PromptSet, load_prompt_set
from d2e_sft.data.views import ViewEncoder
from d2e_sft.util.errors import UserError
from tests.chat_templates import CONVERSATION, FORGETS_THOUGHTS, NAMES, TRAINED, template, template_tokenizer
from tests.tiny import CHAT_TEMPLATE, make_sample, tiny_tokenizer


def turns_of(*texts: str) -> list[Turn]:
    return [Turn(role=role, content=text) for role, text in zip(("user", "assistant") * 2, texts, strict=False)]


def test_each_answer_is_a_row_with_the_span_before_it() -> None:
    spans = "<context>It opens at nine.</context> When?", "<context>Closed on Sunday.</context> And on Sunday?"
    turns = turns_of(spans[0], "At nine.", spans[1], "Not at all.")
    first, second = chat_rows(turns, ContextRule(), "each")
    assert (first.context, first.answers) == ("It opens at nine.", ["At nine."])
    assert (second.context, second.answers) == ("Closed on Sunday.", ["Not at all."])
    assert "It opens at nine." in str(second.conversation.messages("")), "what was said before stays"
    with pytest.raises(ValueError, match="after an assistant turn that is trained on"):
        chat_rows(turns, ContextRule(), "all")


def test_a_context_in_a_field_stands_where_the_turns_quote_it_or_before_the_question() -> None:
    quoted = turns_of("Given: it rains. Wet?", "Yes.")
    (row,) = chat_rows(quoted, ContextRule(""), "last", "it rains.")
    assert row.conversation.messages("")[0]["content"] == "Given:  Wet?"
    repeating = turns_of("Given: it rains. Wet?", "Yes, it rains.", "Why?", "Rain.")
    (row,) = chat_rows(repeating, ContextRule(""), "last", "it rains.")
    assert [turn["content"] for turn in row.conversation.messages("")] == ["Given:  Wet?", "Yes, it rains.", "Why?"]
    with pytest.raises(ValueError, match="turns 1 and 3: 2 quotations of the context; expected one"):
        chat_rows([*repeating[:2], *quoted], ContextRule(""), "last", "it rains.")
    (row,) = chat_rows(quoted, ContextRule("", "Policy: {context}\n"), "last", "It pours.")
    assert row.conversation.messages("It pours.")[0]["content"] == "Policy: It pours.\nGiven: it rains. Wet?"
    assert row.conversation.messages("")[0]["content"] == "Given: it rains. Wet?"


@pytest.mark.parametrize(
    ("prompt", "without"),
    [
        ("Policy:\n{context}\n\nCustomer: {question}", "Customer: Why?"),
        ("Policy: {context}\nCustomer: {question}", "Customer: Why?"),
        ("{question} By {context}?", "Why? By ?"),
        ("{question}\n\nPolicy: {context}", "Why?\n\n"),
    ],
)
def test_a_prompt_without_context_loses_the_paragraph_or_line_of_it(prompt: str, without: str) -> None:
    conversation = prompt_turns(prompt, "Be kind.", "Why?")
    system, user = conversation.messages("{question} twice")
    assert system == {"role": "system", "content": "Be kind."}
    assert user["content"] == prompt.replace("{question}", "Why?").replace("{context}", "{question} twice")
    assert conversation.messages("")[1]["content"] == without


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


@pytest.mark.parametrize("refuses", [True, False])
def test_a_template_without_a_system_role_gets_one_user_message(prompts: PromptSet, refuses: bool) -> None:
    tokenizer = tiny_tokenizer()
    refusal = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    leaving_out = tokenizer.chat_template.replace("in messages %}", "in messages if message.role != 'system' %}")
    tokenizer.chat_template = refusal + tokenizer.chat_template if refuses else leaving_out
    text = tokenizer.decode(ViewEncoder(tokenizer, prompts, VIEWS).prompt_ids(make_sample(), "original"))
    assert text.startswith(f"<|user|>{prompts.messages(make_sample(), 'original')[0]['content']}")
    assert "<|system|>" not in text


def test_a_template_with_the_date_gives_the_same_prompt_on_every_day() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{{ strftime_now('%d %b %Y, %B') }}" + str(tokenizer.chat_template)
    (ids,) = ChatEncoder(tokenizer).ids([[{"role": "user", "content": "x"}]])
    assert tokenizer.decode(ids).startswith("26 Jul 2024, July<|user|>x")


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


LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
DOUBLING = "{% set a = namespace(t='a') %}{% for i in range(60) %}{% set a.t = a.t ~ a.t %}{% endfor %}"
ENDLESS, LARGE = "1 s of CPU time", "256 MB of memory"


@pytest.fixture(autouse=True)
def _empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("D2E_CACHE", str(tmp_path))
    monkeypatch.setattr(template_trial, "_passed", set())


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        (LOOPS, ENDLESS),
        ("{% if add_generation_prompt and messages|length > 2 %}" + LOOPS + "{% endif %}", ENDLESS),
        (DOUBLING, LARGE),
        ("{{ 'a'.ljust(10 ** 10) }}", LARGE),
    ],
)
def test_a_template_without_bounds_is_an_error_at_load(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, template: str, problem: str
) -> None:
    # A slow machine needs a while to fill the memory, and must not come to the other bound first.
    monkeypatch.setattr(template_trial, "_SECONDS", 1 if problem == ENDLESS else 60)
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template + CHAT_TEMPLATE
    started = time.process_time()
    with pytest.raises(UserError, match=f"its chat template takes more than {problem}"):
        ChatEncoder(tokenizer)
    assert not any(tmp_path.iterdir()), "nothing remembers it as good"
    assert time.process_time() - started < 1, "a child process did the work"


@pytest.mark.parametrize("template", ["{{ 1 / 0 }}", "{{ messages[9].content.x }}", "{{ '' + 1 }}", "{% for %}"])
def test_a_template_that_fails_is_an_error_with_its_reason(template: str) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    with pytest.raises(UserError, match="its chat template rejects the messages"):
        ChatEncoder(tokenizer)


@pytest.mark.parametrize("folder", ["cache", "file"])
def test_a_good_template_is_tried_only_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("D2E_CACHE", str(tmp_path / folder))
    forks, fork = list[int](), os.fork
    monkeypatch.setattr(os, "fork", lambda: forks.append(1) or fork())
    for _ in range(2):
        texts = [rendered(tiny_tokenizer(), [{"role": "user", "content": "Rain."}]) for _ in range(3)]
        assert texts == ["<|user|>Rain.<|end|>"] * 3
        monkeypatch.setattr(template_trial, "_passed", set())  # as in another process
    assert len(forks) == (1 if folder == "cache" else 2)


def test_a_template_that_cannot_be_tried_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fork")  # as under Windows
    assert rendered(tiny_tokenizer(), [{"role": "user", "content": "Rain."}]) == "<|user|>Rain.<|end|>"


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
