"""Answers against transformers' guidance and plain generation; when one ends, how it is streamed, and samples."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import GenerationConfig

from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.rows import samples_of
from d2e_sft.data.sample import EventSample
from d2e_sft.data.views import ViewEncoder
from d2e_sft.decoding import (
    DecodingConfig,
    PromptPair,
    answer_samples,
    generate,
    generate_debiased,
    rows,
    token_pairs,
)
from d2e_sft.decoding.decoders import NO_TOKEN, TokenChoice
from d2e_sft.model.forward import cache_name
from d2e_sft.util.errors import UserError
from tests.d2e_sft.decoding.pairs import (
    NEW_TOKENS,
    encoder_decoder,
    frequent_token,
    generated,
    guided,
    random_prompts,
    scored,
    watch_inputs,
)
from tests.tiny import make_sample, overflowing_model, tiny_model, tiny_t5_tokenizer, tiny_tokenizer

ORIGINALS, IMAGINED = random_prompts(5, 8, 40, seed=1), random_prompts(5, 3, 9, seed=2)


@pytest.mark.parametrize(
    ("kind", "alpha"),
    [
        ("llama", 0.9),
        *((kind, 0.5) for kind in ("qwen3", "mistral-window", "gemma2", "gemma3", "granite", "phi", "gpt2", "bloom")),
        *((kind, 0.5) for kind in ("gemma4", "granite4", "granite4-hybrid", "qwen3.5", "lfm2")),
    ],
)
def test_a_batch_gives_the_tokens_of_transformers_guidance_one_at_a_time(kind: str, alpha: float) -> None:
    model = tiny_model(kind, seed=1)
    originals, imagined = random_prompts(6, 8, 40, seed=1), random_prompts(6, 3, 12, seed=2)
    stops = [frequent_token(model, originals, imagined, NEW_TOKENS)]
    ours = generate_debiased(
        model, originals, imagined, DecodingConfig(alpha=alpha, max_new_tokens=NEW_TOKENS), stop_ids=stops
    )
    pairs = [PromptPair(o, i, alpha=alpha) for o, i in zip(originals, imagined, strict=True)]
    theirs = [guided(model, pair, stops, NEW_TOKENS) for pair in pairs]
    assert ours == theirs
    assert len({tuple(answer) for answer in ours}) > 1


def test_a_model_of_states_alone_gives_the_tokens_of_whole_forwards() -> None:
    model = tiny_model("mamba", seed=1)
    if cache_name(model) != "cache":
        pytest.skip("refused before transformers 5.24")
    decoding = DecodingConfig(alpha=0.5, max_new_tokens=NEW_TOKENS)
    stop = frequent_token(model, ORIGINALS, IMAGINED, NEW_TOKENS)
    answers = generate_debiased(model, ORIGINALS, IMAGINED, decoding, stop_ids=[stop])
    assert len({len(answer) for answer in answers}) > 1, "rows leave the batch"
    for original, imagined, answer in zip(ORIGINALS, IMAGINED, answers, strict=True):
        for place, token in enumerate([*answer, stop][:NEW_TOKENS]):
            z = [model(torch.tensor([prompt + answer[:place]])).logits[0, -1] for prompt in (original, imagined)]
            assert (z[0] - 0.5 * z[1]).argmax() == token


def test_a_model_with_a_cache_of_its_own_is_refused() -> None:
    with pytest.raises(UserError, match="RwkvForCausalLM: answers cannot be generated"):
        generate_debiased(tiny_model("rwkv"), ORIGINALS, IMAGINED, DecodingConfig(max_new_tokens=2), stop_ids=[])


def test_alpha_zero_is_plain_greedy_decoding_with_one_stream() -> None:
    model = tiny_model(seed=1)
    originals = random_prompts(4, 5, 30, seed=5)
    plainly = DecodingConfig(alpha=0, max_new_tokens=NEW_TOKENS)
    shapes = watch_inputs(model)
    ours = generate_debiased(model, originals, decoding=plainly, stop_ids=[])
    assert shapes == [(1, sum(len(prompt) for prompt in originals)), *[(4, 1)] * (NEW_TOKENS - 1)]
    for original, answer in zip(originals, ours, strict=True):
        plain = model.generate(
            torch.tensor([original]), do_sample=False, max_new_tokens=NEW_TOKENS, eos_token_id=None, pad_token_id=0
        )
        assert answer == plain[0, len(original) :].tolist()


def test_as_many_beams_as_tokens_find_the_likeliest_of_all_answers_whatever_the_generation_config_asks() -> None:
    model = encoder_decoder()
    asked = GenerationConfig(forced_bos_token_id=9, no_repeat_ngram_size=1, num_beams=4, decoder_start_token_id=0)
    model.generation_config = asked
    width, start = model.config.vocab_size, model.config.decoder_start_token_id
    decoding = DecodingConfig(alpha=0, max_new_tokens=2, num_beams=width)
    ours = generate_debiased(model, ORIGINALS[:3], decoding=decoding, stop_ids=[])
    firsts = torch.tensor([[start, token] for token in range(width)])
    for prompt, answer in zip(ORIGINALS[:3], ours, strict=True):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([prompt]).expand(width, -1), decoder_input_ids=firsts).logits
        first, second = logits.log_softmax(dim=-1).unbind(dim=1)
        best = int((first[0][:, None] + second).argmax())
        assert answer == [best // width, best % width]
    assert model.generation_config is asked


def test_beams_end_answers_at_stop_tokens_and_need_an_encoder() -> None:
    model, decoding = encoder_decoder(), DecodingConfig(alpha=0, max_new_tokens=NEW_TOKENS, num_beams=3)
    stops = range(model.config.vocab_size // 2)
    stopped = generate_debiased(model, ORIGINALS, decoding=decoding, stop_ids=stops)
    assert not set(stops) & {token for answer in stopped for token in answer}
    assert any(len(answer) < NEW_TOKENS for answer in stopped)


def _free(model: Any, count: int = 20) -> list[list[int]]:
    return generate_debiased(model, ORIGINALS, IMAGINED, DecodingConfig(max_new_tokens=count), stop_ids=[])


def test_a_stop_string_ends_the_answer_that_holds_it_and_no_other() -> None:
    model, tokenizer = tiny_model(seed=1), tiny_tokenizer()
    free = _free(model)
    stop = tokenizer.decode(free[2][4:6])
    decoding = DecodingConfig(max_new_tokens=20, stop_strings=[stop])
    stopped = generated(model, token_pairs(ORIGINALS, IMAGINED), decoding, stop_ids=[], tokenizer=tokenizer)
    assert stopped[2] == free[2][:6]
    for answer, whole in zip(stopped, free, strict=True):
        assert answer == whole[: len(answer)]
        assert (len(answer) < 20) == (stop in tokenizer.decode(whole)) or tokenizer.decode(whole).endswith(stop)


def test_without_stop_ids_those_of_the_generation_config_end_an_answer() -> None:
    model = tiny_model(seed=1)
    free = _free(model)
    model.generation_config.eos_token_id = [free[0][3]]
    assert generate_debiased(model, ORIGINALS, IMAGINED, DecodingConfig(max_new_tokens=20))[0] == free[0][:3]


def test_a_stream_gives_each_token_as_it_is_chosen() -> None:
    model = tiny_model(seed=1)
    stops = [_free(model)[0][3]]
    decoding = DecodingConfig(max_new_tokens=20)
    answers = generate_debiased(model, ORIGINALS, IMAGINED, decoding, stop_ids=stops)
    heard: list[int] = []
    for output in generate(model, None, token_pairs(ORIGINALS, IMAGINED), decoding, stop_ids=stops):
        heard.append(output.index)
        steps = heard.count(output.index)
        assert output.tokens == answers[output.index][:steps]
        assert output.ended == (steps > len(output.tokens) or steps == 20)
    assert sorted(heard[:5]) == [0, 1, 2, 3, 4], "all pairs take a step before any takes the next"


def test_a_cancelled_answer_takes_no_further_step() -> None:
    model, decoding = tiny_model(seed=1), DecodingConfig(max_new_tokens=20)
    lengths: dict[int, int] = {}
    for output in generate(model, None, token_pairs(ORIGINALS, IMAGINED), decoding, stop_ids=[]):
        lengths[output.index] = len(output.tokens)
        output.cancelled = output.index == 1 and len(output.tokens) == 3
    assert lengths == {0: 20, 1: 3, 2: 20, 3: 20, 4: 20}


def test_no_prompt_gives_no_answer() -> None:
    assert generate_debiased(tiny_model(), [], []) == []
    assert list(generate(tiny_model(), None, [])) == []


@pytest.mark.parametrize("kind", ["llama", "bloom"])  # packed rows and padded ones
@pytest.mark.parametrize("how", [{}, {"alpha": 0.0}, {"temperature": 1.0}])
def test_overflowing_logits_are_an_error_that_names_prompt_and_dtype(kind: str, how: dict[str, Any]) -> None:
    model, decoding = overflowing_model(kind), DecodingConfig(**{"max_new_tokens": 3, **how})
    pairs = [replace(pair, name=f"sample {i}") for i, pair in enumerate(token_pairs(ORIGINALS, IMAGINED))]
    assert all(len(answer) == 3 for answer in generated(model, pairs, decoding, stop_ids=[]))
    with pytest.raises(UserError, match=r"sample \d: .* NaN or infinity in float16; .*\n.*bfloat16 or float32"):
        generated(model.half(), pairs, decoding, stop_ids=[])


def test_a_compiled_batch_keeps_an_ended_pair_whose_later_logits_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(seed=1)
    decoding = DecodingConfig(max_new_tokens=20, compiled=True)
    monkeypatch.setattr(rows, "_compiled_next_states", lambda: rows._next_states)
    stops = [_free(model)[0][3]]
    expected = generate_debiased(model, ORIGINALS, IMAGINED, replace(decoding, compiled=False), stop_ids=stops)
    assert len(expected[0]) == 3 < max(len(answer) for answer in expected)
    choose, steps = TokenChoice.__call__, itertools.count()

    def spoiling(self: TokenChoice, *arguments: Any) -> Any:
        chosen, indices = choose(self, *arguments), arguments[2]
        if next(steps) > 3:
            chosen[indices.index(0)] = NO_TOKEN
        return chosen

    monkeypatch.setattr(TokenChoice, "__call__", spoiling)
    assert generate_debiased(model, ORIGINALS, IMAGINED, decoding, stop_ids=stops) == expected


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


def test_the_end_of_a_long_context_is_cut() -> None:
    long = make_sample(0, context="It rained and rained. " * 30)
    encoder = ViewEncoder(tiny_tokenizer(), load_prompt_set("default"), ("original", "imagined"))
    limit = len(encoder.prompt_ids(long, "imagined")) + 100
    assert len(encoder.prompt_ids(long, "original")) > limit
    decoding = DecodingConfig(max_new_tokens=5)
    [text] = answer_samples(tiny_model().eval(), tiny_tokenizer(), [long], decoding, max_length=limit)
    assert text == answered_alone("llama", long, 0.5, limit)


def test_prompt_and_answer_fit_the_positions_of_the_model() -> None:
    model, long = tiny_model("gpt2").eval(), make_sample(0, context="It rained and rained. " * 30)
    model.config.max_position_embeddings = 300  # fewer than its table has
    decoding = DecodingConfig(max_new_tokens=5)
    texts = [answer_samples(model, tiny_tokenizer(), [long], decoding, max_length=length) for length in (295, 1000)]
    assert texts[0] == texts[1]
    with pytest.raises(
        UserError, match=r"the longest sample has \d+ tokens and gpt2 models of this size 300 positions"
    ):
        answer_samples(model, tiny_tokenizer(), [long], decoding)


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
