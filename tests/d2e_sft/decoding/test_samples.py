"""Samples in, texts out: the answers are those of each sample's own prompts, decoded alone."""

from __future__ import annotations

import pytest

from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import EventSample
from d2e_sft.data.views import ViewEncoder
from d2e_sft.decoding import DecodingConfig, answer_samples, generate_debiased
from tests.tiny import make_sample, tiny_model, tiny_t5_tokenizer, tiny_tokenizer

SAMPLES = [
    make_sample(0),
    make_sample(1, format="nli", answers=["negative"]),
    make_sample(2, context=""),
    make_sample(3, format="scq", options=["rain", "wind"], answers=["wind"]),
    make_sample(4),
]


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
