"""An answer depends neither on the rest of its batch, nor on what is computed once for several prompts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from d2e_sft.decoding import DecodingConfig, PromptPair, generate_debiased, token_pairs
from d2e_sft.util.errors import UserError
from tests.d2e_sft.decoding.pairs import (
    DECODING,
    KINDS,
    PREFIX,
    decoded_alone,
    generated,
    prefixed_case,
    scored,
    watch_inputs,
)
from tests.tiny import tiny_model


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


@pytest.mark.parametrize(
    ("pairs", "decoding", "error", "said"),
    [
        ([PromptPair([7, 8])], {}, ValueError, "prompt 0: d2e with alpha=0.5 needs an imagined prompt"),
        ([PromptPair([7, 8])], {"decoder": "cad"}, ValueError, "prompt 0: cad:weight=1 with alpha=0 needs"),
        ([PromptPair([7], [8]), PromptPair([7, 8], [])], {}, ValueError, "prompt 1 has no token"),
        ([PromptPair([], [8])], {}, ValueError, "prompt 0 has no token"),
        (
            [PromptPair([7], [8, 999_999])],
            {},
            UserError,
            "has token ids from 8 to 999999; expected 0 to 260",
        ),
        ([PromptPair([7], [8], alpha=0.5)], {"decoder": "cad"}, UserError, "decoder cad:weight=1 has no α"),
        ([PromptPair([7], [8], alpha=float("inf"))], {}, UserError, "alpha=inf: not a debias ratio"),
    ],
)
def test_pairs_that_cannot_be_decoded_are_refused_by_name(
    pairs: list[PromptPair[Any]], decoding: dict[str, Any], error: type[Exception], said: str
) -> None:
    for function in (generated, scored):
        with pytest.raises(error, match=said):
            function(tiny_model(), pairs, DecodingConfig(**decoding))


def test_without_imagined_prompts_two_lists_are_decoded_plainly() -> None:
    prompts, plainly = [[7, 8], [9]], DecodingConfig(alpha=0.0)
    found = generate_debiased(tiny_model(), prompts, stop_ids=[])
    assert found == generated(tiny_model(), [PromptPair(one) for one in prompts], plainly, stop_ids=[])
    with pytest.raises(UserError, match=r"prompt 0: d2e with alpha=0.7 needs[\s\S]*DecodingConfig\(alpha=0\)"):
        generate_debiased(tiny_model(), prompts, decoding=DecodingConfig(alpha=0.7))


def test_lists_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="imagined: has 1 prompts for 2 originals"):
        token_pairs([[7, 8], [8, 9]], [[7]])


@pytest.mark.parametrize("given", [torch.tensor([[7, 8]]), [torch.tensor([7, 8])], [[7, 8]], ((7, 8),)])
def test_a_prompt_may_be_a_tensor(given: Any) -> None:
    [pair] = token_pairs(given, given)
    assert (list(pair.original), list(pair.imagined or ())) == ([7, 8], [7, 8])


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (torch.tensor([[7, 8], [8, 0]]), r"originals: got a tensor of shape \(2, 2\), whose shorter"),
        (torch.tensor([7, 8]), "expected a list of token ids for each prompt"),
        ([7, 8], r"originals: got \[7, 8\]; expected"),
        ({"input_ids": [[7, 8]]}, "remedy: use tokenizer"),
        (["What?"], r"got \['What\?'\]"),
    ],
)
def test_prompts_of_other_shapes_are_refused(given: Any, told: str) -> None:
    with pytest.raises(UserError, match=told):
        token_pairs(given)
