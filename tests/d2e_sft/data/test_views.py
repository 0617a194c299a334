"""Prompt sets word a sample, and views are the tokens that training and decoding get."""

import json
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from d2e_sft.config.recipe import View
from d2e_sft.data.chat_template import FORMS, Form
from d2e_sft.data.prompts import PromptSet, Setting, load_prompt_set
from d2e_sft.data.sample import EventSample
from d2e_sft.data.views import ViewEncoder
from d2e_sft.model.loading import load_tokenizer
from d2e_sft.model.storage.folder import BUILTIN
from tests.chat_templates import template, template_tokenizer
from tests.messages import Call, messages_of
from tests.tiny import chat_sample, make_sample, tiny_tokenizer

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


def told(sample: EventSample, setting: Setting = "zero_shot", form: Form = "chat", *views: View) -> Call:
    """The messages of views; before them two solved samples, if the setting is few-shot."""
    shown = [make_sample(number, id=f"t{number}", context=f"Shown context {number}.") for number in range(2)]

    def call(folder: Path) -> str:
        asked = load_prompt_set("default", form).in_setting(
            setting, (lambda _: shown) if setting == "few_shot" else None
        )
        texts = [
            "\n".join(f"{turn['role']}: {turn['content']}" for turn in asked.messages(sample, view))
            for view in views or ("original",)
        ]
        return "\n---\n".join([*texts, f"stops: {asked.stops}"] if asked.stops else texts)

    return call


def trained(sample: EventSample, max_length: int | None = None) -> Call:
    """The text of each view's tokens, of the answer's (its own between brackets), and of each candidate's."""

    def call(folder: Path) -> str:
        encoder = ViewEncoder(tiny_tokenizer(), load_prompt_set("default"), VIEWS)
        encoded, decode = encoder.encode(sample, max_length=max_length), encoder.tokenizer.decode
        runs = groupby(zip(encoded.answer, encoded.content, strict=True), key=lambda pair: pair[1])
        parts = [(own, decode([token for token, _ in run])) for own, run in runs]
        texts = {view: decode(prompt) for view, prompt in encoded.prompts.items()}
        texts["answer"] = "".join(f"[{text}]" if own else text for own, text in parts)
        responses, common = encoder.option_ids(sample)
        options = [f"{decode(tokens[:common])}[{decode(tokens[common:])}]" for tokens in responses]
        return "\n".join([*(f"{name}: {text}" for name, text in texts.items()), *map("candidate: {}".format, options)])

    return call


def own_set(folder: Path) -> None:
    path = folder / "mine.yaml"
    path.write_text("name: mine\nzero_shot: {qa: {system: s, context: c, user: u, response: 'no placeholder'}}\n")
    load_prompt_set(str(path))


ASKED = make_sample(9, context="The asked context.")
test_prompt = messages_of(
    __file__,
    {
        **{f"{fmt} in training": trained(sample) for fmt, sample in FORMAT_SAMPLES.items()},
        "a cut context in training": trained(FORMAT_SAMPLES["qa"], 280),
        **{f"few-shot as {form}": told(ASKED, "few_shot", form, "original", "imagined") for form in FORMS},
        **{f"steps of {fmt}": told(sample, "cot") for fmt, sample in FORMAT_SAMPLES.items()},
        "steps as a text": told(ASKED, "cot", "completion"),
        "braces": told(make_sample(1, context="a {question} b {context}", question="{answer}?")),
        "a blank context": told(make_sample(1, context=" \n")),
        "a fact": told(make_sample(1, relation="factual")),
        "steps of a fact": told(make_sample(1, relation="factual"), "cot"),
        "no relation": told(make_sample(1, relation="none")),
        "a conversation": told(chat_sample(), "zero_shot", "chat", *VIEWS),
        "a conversation as a text": told(chat_sample(), "zero_shot", "completion"),
        "a conversation few-shot": told(chat_sample(), "few_shot"),
        "no refined context": trained(make_sample(1, refined_context=None)),
        "an own set without a place for the answer": own_set,
        "a misspelt set": lambda tmp: load_prompt_set("defualt"),
    },
)


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
def test_a_rejected_answer_of_a_conversation_replaces_the_last_turn(prompts: PromptSet, marked: bool) -> None:
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


def test_the_digest_of_a_setting_depends_only_on_its_wording(prompts: PromptSet) -> None:
    bare = PromptSet(name=prompts.name, zero_shot=prompts.zero_shot)
    assert bare.digest() == prompts.digest(), "else a run trained before there was `cot` could not be resumed"
    assert len({prompts.in_setting(setting).digest() for setting in ("zero_shot", "few_shot", "cot")}) == 3


def test_the_sets_that_word_rows_are_named_and_an_own_set_words_all(prompts: PromptSet) -> None:
    fact, sample = make_sample(1, relation="factual"), make_sample(1)
    assert prompts.names_for([fact, sample, chat_sample()]) == "neutral, default, the rows' own"
    own = prompts.model_copy(update={"name": "mine"})
    assert own.names_for([fact]) == "mine"
    assert own.messages(fact, "original")[0] == own.messages(sample, "original")[0]
