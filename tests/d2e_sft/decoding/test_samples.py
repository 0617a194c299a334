"""Samples are answered in the wording of training, in the order given."""

from __future__ import annotations

from typing import Any

import pytest
from peft import LoraConfig, get_peft_model

from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.rows import samples_of
from d2e_sft.data.sample import EventSample
from d2e_sft.data.views import ViewEncoder
from d2e_sft.decoding import DecodingConfig, PromptPair, answer_samples, generate_debiased
from d2e_sft.util.errors import UserError
from tests.d2e_sft.decoding.pairs import scored
from tests.tiny import make_sample, tiny_model, tiny_t5_tokenizer, tiny_tokenizer

SAMPLES = [
    make_sample(0),
    make_sample(1, format="nli", answers=["negative"]),
    make_sample(2, context=""),
    make_sample(3, format="scq", options=["rain", "wind"], answers=["wind"]),
    make_sample(4),
]


def answered_alone(kind: str, sample: EventSample, alpha: float, max_length: int | None = None) -> str:
    tokenizer = tiny_t5_tokenizer() if kind == "t5" else tiny_tokenizer()
    encoder = ViewEncoder(
        tokenizer, load_prompt_set("default"), ("original", "imagined"), encoder_decoder=kind == "t5"
    )
    original, imagined = (encoder.prompt_ids(sample, view, max_length) for view in encoder.views)
    [tokens] = generate_debiased(
        tiny_model(kind).eval(), [original], [imagined], DecodingConfig(alpha=alpha, max_new_tokens=5), stop_ids=[1]
    )
    text: str = tokenizer.decode(tokens, skip_special_tokens=True)
    return text


@pytest.mark.parametrize(("kind", "alpha"), [("llama", 0.0), ("llama", 0.7), ("t5", 0.7)])
def test_a_batch_of_several_formats_is_answered_in_the_order_given(kind: str, alpha: float) -> None:
    tokenizer = tiny_t5_tokenizer() if kind == "t5" else tiny_tokenizer()
    decoding = DecodingConfig(alpha=alpha, batch_size=2, max_new_tokens=5)
    texts = answer_samples(tiny_model(kind).eval(), tokenizer, SAMPLES, decoding)
    assert texts == [answered_alone(kind, sample, alpha) for sample in SAMPLES]
    assert len(set(texts)) > 1


def test_a_model_in_training_mode_answers_without_dropout_and_stays_in_it() -> None:
    lora = LoraConfig(r=2, lora_dropout=0.9, init_lora_weights=False, target_modules="all-linear")
    model, decoding = get_peft_model(tiny_model(), lora), DecodingConfig(max_new_tokens=5)
    expected = answer_samples(model.eval(), tiny_tokenizer(), SAMPLES, decoding)
    assert answer_samples(model.train(), tiny_tokenizer(), SAMPLES, decoding) == expected
    pairs = [PromptPair([5, 6, 7], [7], options=[[8, 9]])]
    scores = scored(model, pairs)
    assert model.training
    assert scores == scored(model.eval(), pairs)
    with pytest.raises(UserError, match=r"decoding: got 0\.5; expected a DecodingConfig"):
        answer_samples(model, tiny_tokenizer(), SAMPLES, 0.5)  # type: ignore[arg-type]


def test_the_end_of_a_long_context_is_cut() -> None:
    long = make_sample(0, context="It rained and rained. " * 30)
    encoder = ViewEncoder(tiny_tokenizer(), load_prompt_set("default"), ("original", "imagined"))
    limit = len(encoder.prompt_ids(long, "imagined")) + 100
    assert len(encoder.prompt_ids(long, "original")) > limit
    decoding = DecodingConfig(max_new_tokens=5)
    [text] = answer_samples(tiny_model().eval(), tiny_tokenizer(), [long], decoding, max_length=limit)
    assert text == answered_alone("llama", long, 0.5, limit)


def test_rows_need_no_answers() -> None:
    asked = {"context": "Rain fell.", "question": "What fell?"}
    turns = [{"role": "user", "content": "<context>Rain fell.</context> What fell?"}]
    rows: list[dict[str, Any]] = [asked, {**asked, "options": ["rain", "wind"]}, {"messages": turns}]
    decoding = DecodingConfig(max_new_tokens=5)
    texts = answer_samples(tiny_model().eval(), tiny_tokenizer(), rows, decoding)
    answered: list[dict[str, Any]] = [
        {**asked, "answer": "no matter"},
        {**rows[1], "answer": "wind"},
        {"messages": [*turns, {"role": "assistant", "content": "no matter"}]},
    ]
    expected = [answered_alone("llama", sample, 0.5) for sample in samples_of(answered, "x")]
    assert texts == expected
    assert answer_samples(tiny_model(), tiny_tokenizer(), []) == []
    with pytest.raises(UserError, match="samples, row 0: no `question`"):
        answer_samples(tiny_model(), tiny_tokenizer(), [{"query": "What?"}])
