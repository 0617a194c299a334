"""Prompts, views and batches: one answer in all views, nothing cut that must stay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from d2e_sft.config.recipe import View
from d2e_sft.data.prompts import PromptSet, load_prompt_set
from d2e_sft.data.sample import EventSample
from d2e_sft.data.views import ViewEncoder
from d2e_sft.model.loading import load_tokenizer
from d2e_sft.model.storage.builtin import BUILTIN
from d2e_sft.util.errors import UserError
from tests.chat_samples import chat_sample
from tests.chat_templates import template, template_tokenizer
from tests.tiny import make_sample, tiny_tokenizer

VIEWS: tuple[View, ...] = ("original", "imagined", "refined")
FORMAT_SAMPLES = {
    "qa": make_sample(1),
    "nli": make_sample(1, format="nli", answers=["positive"]),
    "scq": make_sample(1, format="scq", options=["sun", "moon"], answers=["moon"]),
    "mcq": make_sample(1, format="mcq", options=["sun", "moon", "sea"], answers=["sea", "sun"]),
}


@pytest.fixture(scope="module")
def prompts() -> PromptSet:
    return load_prompt_set("default")


@pytest.fixture(scope="module")
def encoder(prompts: PromptSet) -> ViewEncoder:
    return ViewEncoder(tiny_tokenizer(), prompts, VIEWS)


def _text(prompts: PromptSet, sample: EventSample, view: View) -> str:
    return prompts.messages(sample, view)[1]["content"]


@pytest.mark.parametrize("sample", FORMAT_SAMPLES.values(), ids=FORMAT_SAMPLES)
def test_the_views_differ_only_in_the_context(prompts: PromptSet, sample: EventSample) -> None:
    original, imagined, refined = (_text(prompts, sample, view) for view in VIEWS)
    assert sample.context in original
    assert sample.refined_context is not None
    assert original.replace(sample.context, sample.refined_context) == refined
    assert original.endswith(imagined)
    assert sample.context not in imagined
    assert sample.question in imagined


@pytest.mark.parametrize(
    ("name", "form", "options"),
    [
        ("nli", "The answer is:", [" positive", " negative"]),
        ("scq", "The correct option is:", [" (A) sun", " (B) moon"]),
        ("mcq", "The correct options are:", [" (A) sun", " (B) moon", " (C) sea"]),
    ],
)
def test_each_candidate_is_answered_in_the_response_form_whose_tokens_are_the_common_ones(
    encoder: ViewEncoder, name: str, form: str, options: list[str]
) -> None:
    responses, common = encoder.option_ids(FORMAT_SAMPLES[name])
    decode = encoder.tokenizer.decode
    assert [decode(tokens[:common]) for tokens in responses] == [form] * len(options)
    assert [decode(tokens[common:]) for tokens in responses] == options
    if name == "scq":  # moon is the answer
        assert [*responses[1], encoder.end_of_turn] == encoder.answer_ids(FORMAT_SAMPLES[name])


def test_braces_in_a_users_text_stay_text(prompts: PromptSet) -> None:
    sample = make_sample(1, context="a {question} b {context}", question="{answer}?")
    assert "a {question} b {context}" in _text(prompts, sample, "original")
    assert "{answer}?" in _text(prompts, sample, "original")


def test_answer_tokens_are_the_same_in_all_views_and_end_the_turn(encoder: ViewEncoder) -> None:
    encoded = encoder.encode(make_sample(2))
    tokenizer = encoder.tokenizer
    assert tokenizer.decode(encoded.answer) == "The answer is: the river!!<|end|>"
    for prompt in encoded.prompts.values():
        assert tokenizer.decode(prompt).endswith("<|end|><|assistant|>")
        assert tokenizer.decode(prompt).count("<|system|>") == 1


def test_a_missing_refined_context_is_explained(encoder: ViewEncoder) -> None:
    with pytest.raises(UserError, match=r"refined_context is missing(.|\n)*d2e.distill=false"):
        encoder.encode(make_sample(1, refined_context=None))


def test_your_own_prompt_set_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\nzero_shot: {qa: {system: s, context: c, user: u, response: 'no placeholder'}}\n")
    with pytest.raises(UserError, match=r"mine.yaml: zero_shot.qa.response: .*must contain \{answer\} once"):
        load_prompt_set(str(path))
    with pytest.raises(UserError, match="prompt set 'defualt': not found"):
        load_prompt_set("defualt")


class _Slow:
    is_fast = False

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __call__(self, *args: Any, **options: Any) -> Any:
        assert "return_offsets_mapping" not in options
        return self._tokenizer(*args, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def merging_tokenizer() -> Any:
    """The byte tokenizer with a token for a blank and the `t` behind it, as in ` the river`."""
    tokenizer = tiny_tokenizer()
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    blank, letter = (next(t for t in state["model"]["vocab"] if t == symbol) for symbol in ("\u0120", "t"))
    state["model"]["vocab"][blank + letter] = len(state["model"]["vocab"])
    state["model"]["merges"] = [[blank, letter]]
    tokenizer._tokenizer = Tokenizer.from_str(json.dumps(state))
    return tokenizer


def content_of(tokenizer: Any, prompts: PromptSet, sample: EventSample) -> tuple[str, str]:
    """What of the response is marked as the form's, and what as the answer's own."""
    encoded = ViewEncoder(tokenizer, prompts, VIEWS).encode(sample)
    assert len(encoded.content) == len(encoded.answer)
    parts = [[t for t, own in zip(encoded.answer, encoded.content, strict=True) if own is of] for of in (False, True)]
    form, answer = (tokenizer.decode(part) for part in parts)
    return form, answer


@pytest.mark.parametrize("wrap", [lambda tokenizer: tokenizer, _Slow], ids=["fast", "slow"])
@pytest.mark.parametrize(
    ("name", "form", "answer", "tokenizer"),
    [
        ("qa", "The answer is: <|end|>", "the river!", tiny_tokenizer),
        ("nli", "The answer is: <|end|>", "positive", tiny_tokenizer),
        ("scq", "The correct option is: <|end|>", "(B) moon", tiny_tokenizer),
        ("mcq", "The correct options are: <|end|>", "(A) sun; (C) sea", tiny_tokenizer),
        ("qa", "The answer is:<|end|>", " the river!", merging_tokenizer),  # the answer begins within a token
    ],
)
def test_the_tokens_of_the_response_form_are_marked(
    prompts: PromptSet, name: str, form: str, answer: str, tokenizer: Any, wrap: Any
) -> None:
    assert content_of(wrap(tokenizer()), prompts, FORMAT_SAMPLES[name]) == (form, answer)


@pytest.mark.slow
def test_the_builtin_models_tokenizer_marks_the_answer(prompts: PromptSet) -> None:
    tokenizer, _ = load_tokenizer(BUILTIN)
    for name, answer in {"qa": " the river!", "nli": " positive", "mcq": " (A) sun; (C) sea"}.items():
        form, own = content_of(tokenizer, prompts, FORMAT_SAMPLES[name])
        assert own == answer
        assert form == prompts.marker(FORMAT_SAMPLES[name].format) + "<|im_end|>"


@pytest.mark.parametrize("marked", [True, False])
def test_a_conversation_is_trained_on_in_all_answers_alike_in_all_views(prompts: PromptSet, marked: bool) -> None:
    tokenizer = template_tokenizer(template("chatml", marked=marked))
    sample = chat_sample("all")
    encoded = ViewEncoder(tokenizer, prompts, VIEWS).encode(sample)
    said = [tokenizer.decode([*encoded.prompts[view], *encoded.answer]) for view in VIEWS]
    for view, text in zip(VIEWS, said, strict=True):
        turns = [*prompts.messages(sample, view), {"role": "assistant", "content": sample.answers[0]}]
        assert text == tokenizer.apply_chat_template(turns, tokenize=False).removesuffix("\n")
    assert [sample.context in text for text in said] == [True, False, False]
    trained = [token for token, mark in zip(encoded.answer, encoded.trained, strict=True) if mark]
    assert tokenizer.decode(trained) == "Within 30 days.<|end|>The receipt.<|end|>"


def test_a_long_conversation_loses_the_end_of_its_context(prompts: PromptSet) -> None:
    encoder = ViewEncoder(template_tokenizer(template("chatml", marked=True)), prompts, VIEWS)
    whole = encoder.encode(chat_sample("all"))
    cut = encoder.encode(chat_sample("all"), max_length=whole.longest - 10)
    assert cut.answer == whole.answer
    assert cut.longest <= whole.longest - 10
    assert len(cut.prompts["imagined"]) == len(whole.prompts["imagined"])


@pytest.mark.parametrize("marked", [True, False])
def test_a_rejected_answer_of_a_conversation_takes_the_place_of_the_last_turn(
    prompts: PromptSet, marked: bool
) -> None:
    tokenizer = template_tokenizer(template("chatml", marked=marked))
    encoder = ViewEncoder(tokenizer, prompts, ["original"])
    sample = chat_sample(loss="all")
    encoder.prefers = True
    found = encoder.encode(sample.model_copy(update={"rejected": ["Never."]}))
    assert encoder.encode(sample).rejected == []
    other = encoder.encode(sample.model_copy(update={"answers": ["Never."]}))
    assert (found.prompts, found.answer) == (encoder.encode(sample).prompts, encoder.encode(sample).answer)
    assert (found.rejected, found.rejected_trained) == (other.answer, other.trained)
    assert other.prompts == found.prompts
