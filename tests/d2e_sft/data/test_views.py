"""Prompt sets word a sample, and views are the tokens that training and decoding get."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from d2e_sft.config.recipe import View
from d2e_sft.data.prompts import PromptSet, Setting, load_prompt_set
from d2e_sft.data.sample import WORDED, EventSample, Format, Relation
from d2e_sft.data.views import ViewEncoder
from d2e_sft.model.loading import load_tokenizer
from d2e_sft.model.storage.folder import BUILTIN
from d2e_sft.util.errors import UserError
from tests.chat_templates import template, template_tokenizer
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
def test_candidates_share_the_response_forms(encoder: ViewEncoder, name: str, form: str, options: list[str]) -> None:
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


SHOWN = [make_sample(number, id=f"t{number}", context=f"Shown context {number}.") for number in range(3)]
ASKED = make_sample(9, context="The asked context.")


def show(sample: EventSample) -> Sequence[EventSample]:
    return SHOWN


@pytest.fixture(scope="module")
def default_prompts() -> PromptSet:
    return load_prompt_set("default")


def few_shot(default_prompts: PromptSet) -> PromptSet:
    return default_prompts.in_setting("few_shot", show)


def test_demonstrations_are_solved_turns_before_the_question(default_prompts: PromptSet) -> None:
    turns = few_shot(default_prompts).messages(ASKED, "original")
    assert [turn["role"] for turn in turns] == ["system", *["user", "assistant"] * 3, "user"]
    for shown, user, assistant in zip(SHOWN, turns[1:-1:2], turns[2:-1:2], strict=True):
        assert shown.context in user["content"]
        assert shown.question in user["content"]
        assert assistant["content"] == f"The answer is: {shown.answers[0]}"
    assert turns[-1] == default_prompts.messages(ASKED, "original")[-1]


def test_the_imagined_view_drops_only_the_context_of_the_question(default_prompts: PromptSet) -> None:
    original, imagined = (few_shot(default_prompts).messages(ASKED, view) for view in ("original", "imagined"))
    assert original[:-1] == imagined[:-1]
    assert all(shown.context in str(imagined) for shown in SHOWN)
    assert ASKED.context not in str(imagined)


def test_one_text_shows_the_demonstrations_and_ends_in_the_response_form(default_prompts: PromptSet) -> None:
    system, *_ = default_prompts.messages(ASKED, "original")
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


def test_a_blank_context_is_none(default_prompts: PromptSet) -> None:
    blank = make_sample(context=" \n")
    assert default_prompts.messages(blank, "original") == default_prompts.messages(blank, "imagined")


@pytest.mark.parametrize("fmt", WORDED)
def test_chain_of_thought_asks_for_steps_and_keeps_the_response_form(default_prompts: PromptSet, fmt: Format) -> None:
    options = ["a", "b"] if fmt in ("scq", "mcq") else []
    answer = {"nli": "positive", "qa": "rain"}.get(fmt, "a")
    sample = make_sample(format=fmt, options=options, answers=[answer])
    cot = default_prompts.in_setting("cot")
    system, user = cot.messages(sample, "original")
    assert "step by step" in user["content"]
    assert cot.marker(fmt) in system["content"], "the last line must be what is looked for"
    assert cot.marker(fmt) == default_prompts.marker(fmt)


def test_the_digest_of_a_setting_depends_only_on_its_wording(default_prompts: PromptSet) -> None:
    bare = PromptSet(name=default_prompts.name, zero_shot=default_prompts.zero_shot)
    assert bare.digest() == default_prompts.digest(), "else a run trained before there was `cot` could not be resumed"
    assert len({default_prompts.in_setting(setting).digest() for setting in ("zero_shot", "few_shot", "cot")}) == 3


@pytest.mark.parametrize("setting", ["zero_shot", "cot"])
@pytest.mark.parametrize("relation", ["none", "factual"])
def test_prompts_name_events_only_for_events(default_prompts: PromptSet, setting: Setting, relation: Relation) -> None:
    sample = make_sample(1, relation=relation)
    asked = default_prompts.in_setting(setting)
    system, user = asked.messages(sample, "original")
    assert "event" not in system["content"]
    told = asked.messages(make_sample(1), "original")
    assert "event" in told[0]["content"]
    assert user == told[1]
    assert default_prompts.names_for([sample, make_sample(1), chat_sample()]) == "neutral, default, the rows' own"
    own = default_prompts.model_copy(update={"name": "mine"})
    assert own.names_for([sample]) == "mine"
    assert own.messages(sample, "original")[0] == own.messages(make_sample(1), "original")[0], "an own set says it all"


def test_a_conversation_has_its_own_words_and_no_demonstrations(default_prompts: PromptSet) -> None:
    sample = chat_sample()
    said = default_prompts.messages(sample, "refined")
    assert said[0]["content"] == "<context>Bring the receipt.</context> How long?"
    assert (
        default_prompts.response(sample),
        default_prompts.marker("chat"),
        default_prompts.answer_start(sample),
    ) == ("The receipt.", "", 0)
    with pytest.raises(UserError, match="a conversation has no wording for few_shot"):
        few_shot(default_prompts).messages(sample, "original")
