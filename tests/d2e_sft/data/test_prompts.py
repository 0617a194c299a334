"""Prompts in the three settings: what stands in them, and where the context is."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from d2e_sft.data.prompts import PromptSet, Setting, load_prompt_set
from d2e_sft.data.sample import WORDED, EventSample, Format, Relation
from d2e_sft.data.views import ViewEncoder
from d2e_sft.util.errors import UserError
from tests.chat_samples import chat_sample
from tests.tiny import make_sample, tiny_tokenizer

SHOWN = [make_sample(number, id=f"t{number}", context=f"Shown context {number}.") for number in range(3)]
ASKED = make_sample(9, context="The asked context.")


def show(sample: EventSample) -> Sequence[EventSample]:
    return SHOWN


@pytest.fixture(scope="module")
def prompts() -> PromptSet:
    return load_prompt_set("default")


def few_shot(prompts: PromptSet) -> PromptSet:
    return prompts.in_setting("few_shot", show)


def test_demonstrations_are_solved_turns_before_the_question(prompts: PromptSet) -> None:
    turns = few_shot(prompts).messages(ASKED, "original")
    assert [turn["role"] for turn in turns] == ["system", *["user", "assistant"] * 3, "user"]
    for shown, user, assistant in zip(SHOWN, turns[1:-1:2], turns[2:-1:2], strict=True):
        assert shown.context in user["content"]
        assert shown.question in user["content"]
        assert assistant["content"] == f"The answer is: {shown.answers[0]}"
    assert turns[-1] == prompts.messages(ASKED, "original")[-1]


def test_the_imagined_view_drops_only_the_context_of_the_question(prompts: PromptSet) -> None:
    original, imagined = (few_shot(prompts).messages(ASKED, view) for view in ("original", "imagined"))
    assert original[:-1] == imagined[:-1]
    assert all(shown.context in str(imagined) for shown in SHOWN)
    assert ASKED.context not in str(imagined)


def test_one_text_shows_the_demonstrations_and_ends_in_the_response_form(prompts: PromptSet) -> None:
    system, *_ = prompts.messages(ASKED, "original")
    solved = [
        f"Context: Shown context {n}.\nQuestion: {one.question}\nThe answer is: {one.answers[0]}"
        for n, one in enumerate(SHOWN)
    ]
    asked = "Context: The asked context.\nQuestion: What rose after 9 days?\nThe answer is:"
    text = few_shot(load_prompt_set("default", "completion"))
    (original,) = text.messages(ASKED, "original")
    assert original["content"] == "\n\n".join([system["content"], *solved, asked])
    (imagined,) = text.messages(ASKED, "imagined")
    assert imagined["content"].endswith(f"\n\n{asked.partition(chr(10))[2]}")
    assert few_shot(load_prompt_set("default", "one_turn")).messages(ASKED, "original") == [
        system, {"role": "user", "content": "\n\n".join([*solved, asked])},
    ]  # fmt: skip
    assert text.in_setting("cot").messages(ASKED, "original")[0]["content"].endswith("step by step.\nReasoning:")
    assert text.stops == ("\nPremise:", "\nContext:"), "not an empty line, which may come before the answer"


@pytest.mark.parametrize("name", ["default", "bare"])
def test_the_answer_continues_the_text_in_training_and_as_an_option(name: str) -> None:
    wording, tokenizer = load_prompt_set(name, "completion"), tiny_tokenizer()
    tokenizer.chat_template = None
    encoder = ViewEncoder(tokenizer, wording, ("original", "imagined"))
    sample = make_sample(format="scq", options=["It rained.", "It snowed."], answers=["It rained."])
    encoded = encoder.encode(sample)
    for view, prompt in encoded.prompts.items():
        (message,) = wording.messages(sample, view)
        whole = f"{message['content']} (A) It rained.<|end|>"
        assert [*prompt, *encoded.answer] == tokenizer(whole)["input_ids"]
    kept = [token for token, counts in zip(encoded.answer, encoded.content, strict=True) if counts]
    assert tokenizer.decode(kept).strip() == "(A) It rained."
    options, given = encoder.option_ids(sample)
    assert ([tokenizer.decode(option) for option in options], given) == ([" (A) It rained.", " (B) It snowed."], 0)


def test_a_blank_context_is_none(prompts: PromptSet) -> None:
    blank = make_sample(context=" \n")
    assert prompts.messages(blank, "original") == prompts.messages(blank, "imagined")


@pytest.mark.parametrize("fmt", WORDED)
def test_chain_of_thought_asks_for_steps_and_keeps_the_response_form(prompts: PromptSet, fmt: Format) -> None:
    options = ["a", "b"] if fmt in ("scq", "mcq") else []
    answer = {"nli": "positive", "qa": "rain"}.get(fmt, "a")
    sample = make_sample(format=fmt, options=options, answers=[answer])
    cot = prompts.in_setting("cot")
    system, user = cot.messages(sample, "original")
    assert "step by step" in user["content"]
    assert cot.marker(fmt) in system["content"], "the last line must be what is looked for"
    assert cot.marker(fmt) == prompts.marker(fmt)


def test_the_digest_of_a_setting_depends_only_on_its_wording(prompts: PromptSet) -> None:
    bare = PromptSet(name=prompts.name, zero_shot=prompts.zero_shot)
    assert bare.digest() == prompts.digest(), "else a run trained before there was `cot` could not be resumed"
    assert len({prompts.in_setting(setting).digest() for setting in ("zero_shot", "few_shot", "cot")}) == 3


@pytest.mark.parametrize("setting", ["zero_shot", "cot"])
@pytest.mark.parametrize("relation", ["none", "factual"])
def test_prompts_of_rows_of_no_relation_of_events_do_not_mention_events(
    prompts: PromptSet, setting: Setting, relation: Relation
) -> None:
    sample = make_sample(1, relation=relation)
    asked = prompts.in_setting(setting)
    system, user = asked.messages(sample, "original")
    assert "event" not in system["content"]
    told = asked.messages(make_sample(1), "original")
    assert "event" in told[0]["content"]
    assert user == told[1]
    assert prompts.names_for([sample, make_sample(1), chat_sample()]) == "neutral, default, the rows' own"
    own = prompts.model_copy(update={"name": "mine"})
    assert own.names_for([sample]) == "mine"
    assert own.messages(sample, "original")[0] == own.messages(make_sample(1), "original")[0], "an own set says it all"


def test_a_conversation_has_its_own_words_and_no_demonstrations(prompts: PromptSet) -> None:
    sample = chat_sample()
    said = prompts.messages(sample, "refined")
    assert said[0]["content"] == "<context>Bring the receipt.</context> How long?"
    assert (prompts.response(sample), prompts.marker("chat"), prompts.answer_start(sample)) == ("The receipt.", "", 0)
    with pytest.raises(UserError, match="a conversation has no wording for few_shot"):
        few_shot(prompts).messages(sample, "original")
