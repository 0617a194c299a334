"""Rows of a batch as they are decoded, and options scored by their likelihood."""

import random
import shutil
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from d2e_sft.decoding import DecodingConfig, PromptPair, cache, generate, generate_debiased, rows, token_pairs
from d2e_sft.decoding.decoders import decoder_of
from d2e_sft.decoding.likelihood import KeptStates
from d2e_sft.decoding.pairs import OptionScore
from d2e_sft.model.forward import cache_name
from d2e_sft.util.errors import UserError
from tests.d2e_sft.decoding.pairs import (
    DECODING,
    KINDS,
    PREFIX,
    decoded_alone,
    generated,
    prefixed_case,
    random_prompts,
    scored,
    watch_inputs,
)
from tests.tiny import VOCAB_SIZE, overflowing_model, tiny_model


@pytest.mark.parametrize("kind", KINDS)
def test_answers_do_not_depend_on_batch_size_order_and_groups(kind: str) -> None:
    model, pairs, stops = prefixed_case(kind)
    one, three, five = (replace(DECODING, batch_size=size) for size in (1, 3, 5))
    by_one = generated(model, pairs, one, stop_ids=stops)
    by_three = generated(model, pairs, three, stop_ids=stops)
    backwards = generated(model, pairs[::-1], five, stop_ids=stops)[::-1]
    grouped = generated(model, [replace(pair, group=i % 2) for i, pair in enumerate(pairs)], three, stop_ids=stops)
    assert by_one == by_three == backwards == grouped == decoded_alone(model, pairs, stops)
    assert len({len(answer) for answer in by_one}) > 2, "the case needs pairs that finish at different steps"


def test_each_pair_has_its_alpha_and_those_without_context_no_imagined_row() -> None:
    model, pairs, stops = prefixed_case("llama")
    pairs[2] = replace(pairs[2], imagined=list(pairs[2].original))  # no context to remove
    alphas = [0.0, 0.5, 1.5, 2.0, 0.0, 0.3, 1.0, 0.5]
    pairs = [replace(pair, alpha=alpha) for pair, alpha in zip(pairs, alphas, strict=True)]
    shapes = watch_inputs(model)
    generated(model, pairs, replace(DECODING, max_new_tokens=2), stop_ids=[])
    assert shapes[2] == (8 + 5, 1), "after prefix and prompts; three pairs have α = 0 or equal prompts"
    mixed = generated(model, pairs, DECODING, stop_ids=stops)
    assert mixed == decoded_alone(model, pairs, stops)
    plain = PromptPair(pairs[2].original)
    assert [mixed[2]] == generated(model, [plain], replace(DECODING, alpha=0), stop_ids=stops)


def test_the_common_prefix_goes_through_the_model_once_for_all_batches() -> None:
    model, pairs, _ = prefixed_case("llama")
    shapes = watch_inputs(model)
    generated(model, pairs, DecodingConfig(batch_size=2, alpha=0.5, max_new_tokens=1))
    own = sum(len(prompt) - len(PREFIX) for pair in pairs for prompt in (pair.original, pair.imagined))
    assert shapes[0] == (1, len(PREFIX))
    assert sum(tokens for _, tokens in shapes) == len(PREFIX) + own


def test_without_imagined_prompts_two_lists_are_decoded_plainly() -> None:
    prompts, plainly = [[7, 8], [9]], DecodingConfig(alpha=0.0)
    found = generate_debiased(tiny_model(), prompts, stop_ids=[])
    assert found == generated(tiny_model(), [PromptPair(one) for one in prompts], plainly, stop_ids=[])


@pytest.mark.parametrize("given", [torch.tensor([[7, 8]]), [torch.tensor([7, 8])], [[7, 8]], ((7, 8),)])
def test_a_prompt_may_be_a_tensor(given: Any) -> None:
    [pair] = token_pairs(given, given)
    assert (list(pair.original), list(pair.imagined or ())) == ([7, 8], [7, 8])


@pytest.mark.parametrize("kind", ["llama", "mistral-window", "gemma3"])
def test_dense_attention_and_chunked_prefill_change_no_answer(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, pairs, stops = prefixed_case(kind)
    answers = generated(model, pairs, DECODING, stop_ids=stops)
    with monkeypatch.context() as patch:
        patch.setattr(cache, "_can_cascade", lambda *_: False)
        assert generated(model, pairs, DECODING, stop_ids=stops) == answers
    monkeypatch.setattr(cache, "PREFILL_TOKENS", 20)
    assert generated(model, pairs, DECODING, stop_ids=stops) == answers


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor on CPU needs g++")
@pytest.mark.parametrize(("kind", "backend"), [("llama", "inductor"), ("gemma3", "aot_eager")])
def test_a_compiled_step_gives_the_same_answers(kind: str, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both kinds are traced without a graph break; kernels are compiled for one only, which takes 20 s."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    rows._compiled_next_states.cache_clear()
    model, pairs, stops = prefixed_case(kind)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = generated(model, pairs, replace(DECODING, compiled=True), stop_ids=stops)
    assert compiled == generated(model, pairs, DECODING, stop_ids=stops)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert not torch._dynamo.utils.counters["graph_break"]


OTHER_PREFIX = list(range(60, 85))


@pytest.mark.parametrize("kind", ["llama", "mistral-window"])
def test_rows_of_several_groups_run_together_and_none_after_its_end(kind: str) -> None:
    model = tiny_model(kind, seed=1)
    prompts = [
        (random_prompts(20, 5, 60, seed, prefix), random_prompts(20, 3, 9, seed + 1, prefix))
        for seed, prefix in ((3, PREFIX), (5, OTHER_PREFIX))
    ]
    originals, imagined = ([*first, *second] for first, second in zip(*prompts, strict=True))
    pairs = [replace(pair, group=place // 20) for place, pair in enumerate(token_pairs(originals, imagined))]
    pairs[7] = replace(pairs[7], imagined=list(pairs[7].original))  # decoded plainly, with one row
    stops = range(VOCAB_SIZE // 5)
    alone = generated(model, pairs, replace(DECODING, batch_size=1), stop_ids=stops)
    shapes = watch_inputs(model)
    together = generated(model, pairs, replace(DECODING, batch_size=32), stop_ids=stops)
    assert together == alone
    steps = [rows for rows, length in shapes if length == 1]
    # The first token comes from the prompt; a stop token takes a step, too.
    taken = [len(answer) + (len(answer) < DECODING.max_new_tokens) - 1 for answer in together]
    assert sum(steps) == sum(count * (1 if place == 7 else 2) for place, count in enumerate(taken))
    assert max(steps) <= 64
    one_after_another = sum(max(taken[first : first + 20]) for first in (0, 20))
    assert len(steps) < one_after_another


def test_memory_limits_how_many_run_and_enter(monkeypatch: pytest.MonkeyPatch) -> None:
    model, pairs, stops = prefixed_case("llama", 24)
    decoding = DecodingConfig(max_new_tokens=12)
    free = generated(model, pairs, decoding, stop_ids=stops)
    cache = model(model.dummy_inputs["input_ids"], use_cache=True)[cache_name(model)]
    stored = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    token_bytes = stored / model.dummy_inputs["input_ids"].numel()
    weights = sum(weight.nbytes for weight in model.parameters()) + sum(buffer.nbytes for buffer in model.buffers())
    tokens = 600  # a pair takes at most 90 + 39 + 24
    monkeypatch.setattr(rows, "total_memory", lambda device: weights + 4 * tokens * token_bytes)
    limits = rows.budget_of(model, decoding)
    assert (limits.pairs, limits.batch, limits.tokens) == (64, 16, pytest.approx(tokens))
    batches = [indices for indices, _ in rows.batches_of(pairs, limits, group_batch_size=16)]
    cost = [len(pair.original) + len(pair.imagined or ()) + 24 for pair in pairs]
    assert all(2 * sum(cost[i] for i in indices) <= tokens for indices in batches)
    shapes = watch_inputs(model)
    assert generated(model, pairs, decoding, stop_ids=stops) == free
    assert max(rows for rows, length in shapes if length == 1) <= 2 * tokens // min(cost)
    monkeypatch.setattr(rows, "total_memory", lambda device: 0)
    assert generated(model, pairs, decoding, stop_ids=stops) == free, "one pair at a time"
    assert rows.budget_of(model, replace(decoding, batch_size=5)).pairs == 5, "what is given counts"


def test_bfloat16_weights_decode_without_leaving_bfloat16() -> None:
    model, pairs, _ = prefixed_case("llama")
    model = model.to(torch.bfloat16)
    kinds: set[torch.dtype] = set()
    model.model.layers[0].register_forward_hook(lambda _, __, output: kinds.add(output.dtype))
    answers = generated(model, pairs, DecodingConfig(max_new_tokens=4), stop_ids=[])
    assert kinds == {torch.bfloat16}
    assert [len(answer) for answer in answers] == [4] * 8


def test_the_models_attention_is_restored_even_if_nobody_takes_the_next_token() -> None:
    model, pairs, _ = prefixed_case("llama")
    model.set_attn_implementation("eager")
    outputs = generate(model, None, pairs, DECODING)
    next(outputs)
    assert model.config._attn_implementation != "eager"
    assert not torch.is_inference_mode_enabled()
    outputs.close()  # type: ignore[attr-defined]
    assert model.config._attn_implementation == "eager"


def test_an_imagined_prompt_of_several_samples_is_computed_once_but_for_its_last_token() -> None:
    model, pairs, _ = prefixed_case("llama")
    same = [replace(pair, imagined=[*PREFIX, *range(50, 90)]) for pair in pairs]
    shapes = watch_inputs(model)
    generated(model, same, DecodingConfig(max_new_tokens=1))
    own = sum(len(pair.original) - len(PREFIX) for pair in pairs)
    assert sum(tokens for _, tokens in shapes) == len(PREFIX) + own + 39 + 8


# Models whose rows are packed, and some that take padded ones (states, capped scores, an encoder).
PACKED = ["llama", "mistral-window", "gemma3", "gemma4", "granite", "granite4", "phi", "gpt2"]
PADDED = ["mamba", "qwen3.5", "lfm2", "granite4-hybrid", "gemma2", "t5"]


def case(count: int = 7) -> list[PromptPair[Any]]:
    """Pairs after a common prefix, with options of 3 to 14 tokens.

    Options of a pair share their first tokens; one is a prefix of another, and two differ only in their last token.
    """
    generator = random.Random(5)
    options: list[list[list[int]]] = []
    for _ in range(count):
        form = [generator.randrange(5, VOCAB_SIZE) for _ in range(2)]
        own = random_prompts(generator.randint(1, 5), 1, 12, seed=generator.randrange(1000), prefix=form)
        options.append(own)
    options[2].append(options[2][0][:-1])
    options[3] = [[*options[3][0][:4], 7], [*options[3][0][:4], 8]]
    originals = random_prompts(count, 5, 60, seed=3, prefix=PREFIX)
    imagined = random_prompts(count, 3, 9, seed=4, prefix=PREFIX)
    imagined[5] = list(originals[5])  # no context to remove
    given = [2, 0, 1, 2, 0, 1, 2]
    return [PromptPair(*fields) for fields in zip(originals, imagined, options, given, strict=True)]


def logits_of(model: Any, prompt: list[int], option: list[int]) -> torch.Tensor:
    """(tokens, V): what predicts each token of the option, by one forward of the model itself."""
    with torch.no_grad():
        if model.config.is_encoder_decoder:
            decoder = torch.tensor([[0, *option[:-1]]])
            return model(input_ids=torch.tensor([prompt]), decoder_input_ids=decoder).logits[0].double()
        return model(torch.tensor([[*prompt, *option]])).logits[0, len(prompt) - 1 : -1].double()


def directly(model: Any, pair: PromptPair[Any], option: list[int], decoding: DecodingConfig) -> OptionScore:
    """By whole forwards, in float64."""
    logits = logits_of(model, pair.original, option)
    if pair.original != pair.imagined:
        logits = decoder_of(decoding)(logits, logits_of(model, pair.imagined, option))
    logits, target = logits[pair.given :], torch.tensor(option[pair.given :])
    logprobs = logits.log_softmax(-1)[torch.arange(len(target)), target]
    return OptionScore(logprobs.sum().item(), len(target), bool((logits.argmax(-1) == target).all()))


@pytest.mark.parametrize(
    ("kind", "decoder"),
    [
        *((kind, "d2e:alpha=0.5") for kind in (*PACKED, *PADDED)),
        *((kind, f"d2e:alpha={alpha}") for kind in ("llama", "t5") for alpha in (0.0, 2.0)),
        *(("llama", decoder) for decoder in ("cad", "adacad:floor=0.2")),
        *((kind, "adacad:floor=0.2") for kind in ("gemma2", "t5")),
    ],
)
def test_a_score_is_the_summed_log_softmax_of_the_decoders_scores(kind: str, decoder: str) -> None:
    model, pairs = tiny_model(kind, seed=1), case()
    decoding = DecodingConfig(decoder=decoder, batch_size=3)
    for pair, scores in zip(pairs, scored(model, pairs, decoding), strict=True):
        for option, found in zip(pair.options, scores, strict=True):
            expected = directly(model, pair, option, decoding)
            # float32 against float64, relative to sums of 10 to 500
            assert found.logprob == pytest.approx(expected.logprob, rel=2e-5, abs=1e-5)
            assert found.tokens == expected.tokens
            assert found.greedy == expected.greedy


@pytest.mark.parametrize("kind", ["llama", "gpt2", "gemma2"])
def test_decoders_that_share_kept_states_score_as_each_alone(kind: str) -> None:
    model, pairs = tiny_model(kind, seed=1), case()
    rules = [DecodingConfig(decoder=name, batch_size=3) for name in ("cad", "adacad", "d2e:alpha=0.3", "plain")]
    alone = [scored(model, pairs, rule) for rule in rules]
    kept: KeptStates = {}
    assert [scored(model, pairs, rule, kept=kept) for rule in rules] == alone
    assert bool(kept) == (kind != "gemma2"), "a model that takes no packed rows keeps nothing"
    if kind == "llama":
        shapes = watch_inputs(model)
        scored(model, pairs, rules[0], kept=kept)
        assert shapes == [], "all states are kept"


def test_states_kept_by_plain_decoding_are_not_taken_for_those_without_context() -> None:
    model, pairs = tiny_model("llama", seed=1), case()
    kept: KeptStates = {}
    scored(model, pairs, DecodingConfig(decoder="plain"), kept=kept)
    rule = DecodingConfig(decoder="cad")
    assert scored(model, pairs, rule, kept=kept) == scored(model, pairs, rule)


def test_what_options_have_in_common_goes_through_the_model_once() -> None:
    model = tiny_model("llama")
    original, imagined = random_prompts(2, 40, 40, seed=1)
    form = random_prompts(1, 10, 10, seed=2)[0]
    shapes = watch_inputs(model)
    scored(model, [PromptPair(original, imagined, [[*form, 5], [*form, 6], [*form, 6, 7, 8]])])
    assert sum(tokens for _, tokens in shapes) == 2 * (40 + 10 + 2), "prompt, form and two more tokens, in either view"


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_what_greedy_decoding_writes_is_greedy_and_no_option_of_its_length_is_likelier(alpha: float) -> None:
    model = tiny_model("llama", seed=1)
    pairs = [replace(pair, options=[[token] for token in range(VOCAB_SIZE)], given=0) for pair in case()]
    decoding = DecodingConfig(alpha=alpha, max_new_tokens=1)
    written = generated(model, pairs, decoding, stop_ids=[])
    for scores, [token] in zip(scored(model, pairs, decoding), written, strict=True):
        assert [one.greedy for one in scores].index(True) == token
        assert max(scores, key=lambda one: one.logprob) is scores[token]
        assert sum(torch.tensor([one.logprob for one in scores]).exp()) == pytest.approx(1, abs=1e-5)


def test_each_pair_has_its_alpha_whatever_the_batch_and_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny_model("llama", seed=1)
    alphas = [0.0, 0.5, 0.9, 2.0, 0.0, 0.3, 1.0]
    pairs = [replace(pair, alpha=alphas[i], group=i % 2) for i, pair in enumerate(case())]
    pairs[0] = replace(pairs[0], options=[*pairs[0].options, pairs[0].options[0]])
    monkeypatch.setattr("d2e_sft.decoding.likelihood._AT_ONCE", 3)
    together = scored(model, pairs, DecodingConfig(batch_size=4))
    monkeypatch.undo()
    assert together[0][0] == together[0][-1], "equal options have equal scores"
    for pair, scores in zip(pairs, together, strict=True):
        [alone] = scored(model, [replace(pair, alpha=None)], DecodingConfig(alpha=pair.alpha))
        assert [one.logprob for one in scores] == pytest.approx([one.logprob for one in alone], rel=1e-5)


@pytest.mark.parametrize("kind", ["llama", "bloom"])
def test_a_log_probability_that_is_no_number_is_an_error_that_names_prompt_and_dtype(kind: str) -> None:
    model, pairs = overflowing_model(kind), case()
    scored(model, pairs)
    with pytest.raises(UserError, match=r"prompt \d: the log-probability of option \d is nan in float16"):
        scored(model.half(), pairs)
