"""Scores of options: the packed form against a forward for each option and view, and a direct computation."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from d2e_sft.decoding import DecodingConfig, PromptPair
from d2e_sft.decoding.decoders import decoder_of
from d2e_sft.decoding.likelihood import KeptStates
from d2e_sft.decoding.pairs import OptionScore
from d2e_sft.util.errors import UserError
from tests.d2e_sft.decoding.pairs import PREFIX, generated, random_prompts, scored, watch_inputs
from tests.tiny import VOCAB_SIZE, overflowing_model, tiny_model

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
def test_a_score_is_the_log_softmax_of_the_decoders_scores_summed_over_the_options_tokens(
    kind: str, decoder: str
) -> None:
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


def test_each_pair_has_its_alpha_and_batches_groups_and_parts_make_no_difference(
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
