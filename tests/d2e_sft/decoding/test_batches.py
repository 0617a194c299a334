"""An answer depends neither on what is decoded beside it, nor on what is computed once for several prompts."""

from __future__ import annotations

import re
from typing import Any

import pytest

from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import EventSample
from d2e_sft.data.views import ViewEncoder
from d2e_sft.decoding import DecodingConfig, answer_samples, decode_prompts, generate_debiased
from tests.d2e_sft.decoding.pairs import (
    KINDS,
    NEW_TOKENS,
    PREFIX,
    decoded_alone,
    prefixed_case,
)
from tests.tiny import make_sample, tiny_model, tiny_t5_tokenizer, tiny_tokenizer

SAMPLES = [
    make_sample(0),
    make_sample(1, format="nli", answers=["negative"]),
    make_sample(2, context=""),
    make_sample(3, format="scq", options=["rain", "wind"], answers=["wind"]),
    make_sample(4),
]


@pytest.mark.parametrize("kind", KINDS)
def test_results_keep_the_order_of_the_prompts_whatever_the_batch_size_and_order(kind: str) -> None:
    model, originals, imagined, stops = prefixed_case(kind)
    seen: list[int] = []
    options: dict[str, Any] = {"decoding": DecodingConfig(max_new_tokens=NEW_TOKENS, batch_size=3), "stop_ids": stops}
    one, five = (DecodingConfig(max_new_tokens=NEW_TOKENS, batch_size=size) for size in (1, 5))
    by_one = decode_prompts(model, originals, imagined, one, stop_ids=stops)
    by_three = decode_prompts(model, originals, imagined, on_batch=lambda indices, _: seen.extend(indices), **options)
    backwards = decode_prompts(model, originals[::-1], imagined[::-1], five, stop_ids=stops)[::-1]
    grouped = decode_prompts(model, originals, imagined, groups=[i % 2 for i in range(8)], **options)
    assert by_one == by_three == backwards == grouped == decoded_alone(model, originals, imagined, stop_ids=stops)
    assert sorted(seen) == list(range(8))


def test_each_request_has_its_alpha_and_those_without_context_no_imagined_row() -> None:
    model, originals, imagined, stops = prefixed_case("llama")
    imagined[2] = list(originals[2])  # no context to remove
    alphas = [0.0, 0.5, 0.9, 2.0, 0.0, 0.3, 1.0, 0.5]
    generate_debiased(model, originals[:1], decoding=DecodingConfig(alpha=0, max_new_tokens=1))
    rows: list[int] = []
    model.model.register_forward_pre_hook(
        lambda _, __, kwargs: rows.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    generate_debiased(model, originals, imagined, DecodingConfig(max_new_tokens=2), alpha=alphas, stop_ids=[])
    mixed = generate_debiased(
        model, originals, imagined, DecodingConfig(max_new_tokens=NEW_TOKENS), alpha=alphas, stop_ids=stops
    )
    assert rows[1] == 8 + 5  # of three pairs the α is 0 or the prompts are equal
    assert mixed == decoded_alone(model, originals, imagined, alpha=alphas, stop_ids=stops)
    assert (
        mixed[2]
        == generate_debiased(
            model, [originals[2]], decoding=DecodingConfig(alpha=0, max_new_tokens=NEW_TOKENS), stop_ids=stops
        )[0]
    )


def test_the_common_prefix_goes_through_the_model_once_for_all_batches() -> None:
    model, originals, imagined, _ = prefixed_case("llama")
    generate_debiased(model, originals[:1], decoding=DecodingConfig(alpha=0, max_new_tokens=1))
    tokens: list[int] = []
    model.model.register_forward_pre_hook(
        lambda _, __, kwargs: tokens.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    decode_prompts(model, originals, imagined, DecodingConfig(batch_size=2, alpha=0.5, max_new_tokens=1))
    own = sum(len(prompt) - len(PREFIX) for prompt in [*originals, *imagined])
    assert tokens[0] == len(PREFIX)
    assert sum(tokens) == len(PREFIX) + own


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"imagined": [[5], [6], [7]]}, "3 values of imagined for 2 prompts"),
        ({"imagined": [[5]]}, "1 values of imagined for 2 prompts"),
        ({"alpha": [0.5]}, "1 values of alpha for 2 prompts"),
        ({"groups": ["qa"]}, "1 values of groups for 2 prompts"),
        ({"imagined": [[5], []]}, "imagined[1] has no token"),
        ({"originals": [[], [8, 9]]}, "originals[0] has no token"),
    ],
)
def test_what_does_not_fit_the_prompts_is_refused_by_name(options: dict[str, Any], said: str) -> None:
    """A list of groups that is too short would otherwise leave prompts without an answer, and say nothing."""
    given = {"originals": [[7, 8], [8, 9]], "imagined": [[7], [8]], **options}
    with pytest.raises(ValueError, match=re.escape(said)):
        decode_prompts(tiny_model(), **given, decoding=DecodingConfig(max_new_tokens=2))


def alone(kind: str, sample: EventSample, alpha: float, max_length: int | None = None) -> str:
    tokenizer = tiny_t5_tokenizer() if kind == "t5" else tiny_tokenizer()
    encoder = ViewEncoder(
        tokenizer, load_prompt_set("default"), ("original", "imagined"), encoder_decoder=kind == "t5"
    )
    original, imagined = (encoder.prompt_ids(sample, view, max_length) for view in ("original", "imagined"))
    [tokens] = generate_debiased(
        tiny_model(kind).eval(), [original], [imagined], DecodingConfig(alpha=alpha, max_new_tokens=5), stop_ids=[1]
    )
    text: str = tokenizer.decode(tokens, skip_special_tokens=True)
    return text


@pytest.mark.parametrize("kind", ["llama", "t5"])
@pytest.mark.parametrize("alpha", [0.0, 0.7])
def test_a_batch_of_several_formats_is_answered_in_the_order_given(kind: str, alpha: float) -> None:
    tokenizer = tiny_t5_tokenizer() if kind == "t5" else tiny_tokenizer()
    texts = answer_samples(
        tiny_model(kind).eval(), tokenizer, SAMPLES, DecodingConfig(alpha=alpha, batch_size=2, max_new_tokens=5)
    )
    assert texts == [alone(kind, sample, alpha) for sample in SAMPLES]
    assert len(set(texts)) > 1


def test_each_sample_may_have_its_own_ratio() -> None:
    alphas = [0.0, 0.3, 0.5, 2.0, 0.9]
    texts = answer_samples(
        tiny_model().eval(), tiny_tokenizer(), SAMPLES, DecodingConfig(max_new_tokens=5), alpha=alphas
    )
    assert texts == [alone("llama", sample, alpha) for sample, alpha in zip(SAMPLES, alphas, strict=True)]


def test_the_end_of_a_long_context_gives_way() -> None:
    long = make_sample(0, context="It rained and rained. " * 30)
    encoder = ViewEncoder(tiny_tokenizer(), load_prompt_set("default"), ("original", "imagined"))
    limit = len(encoder.prompt_ids(long, "imagined")) + 100
    assert len(encoder.prompt_ids(long, "original")) > limit
    [text] = answer_samples(
        tiny_model().eval(), tiny_tokenizer(), [long], DecodingConfig(max_new_tokens=5), max_length=limit
    )
    assert text == alone("llama", long, 0.5, limit)
