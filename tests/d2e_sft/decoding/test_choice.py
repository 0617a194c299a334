"""Which token is taken: sampling, the plausibility cut-off, and options that are refused."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

from d2e_sft.decoding import DecodingConfig, token_pairs
from d2e_sft.decoding.decoders import NO_TOKEN, RowStates, TokenChoice, named_decoder
from tests.d2e_sft.decoding.pairs import generated, random_prompts
from tests.tiny import tiny_model


def _states(original: list[float], imagined: list[float]) -> RowStates:
    return RowStates(torch.tensor([original]), torch.tensor([imagined]), torch.tensor([0]))


def _drawn(states: RowStates, alpha: float, count: int = 4000, **options: Any) -> Counter[int]:
    choose = TokenChoice(DecodingConfig(**options))
    return Counter(int(choose(states, torch.tensor([alpha]), [0])) for _ in range(count))


def test_top_k_and_top_p_leave_only_the_likeliest() -> None:
    states = _states([3.0, 2.5, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0])
    assert set(_drawn(states, 0.5, count=500, temperature=1.0, top_k=2)) == {0, 1}
    # probabilities .55 .33 .07 .03: the first two reach 0.8
    assert set(_drawn(states, 0.5, count=500, temperature=1.0, top_p=0.8)) == {0, 1}
    assert set(_drawn(states, 0.5, count=500, temperature=1.0, top_p=0.3)) == {0}


def test_the_plausibility_cut_off_keeps_tokens_that_the_original_finds_likely() -> None:
    # Debiased, token 2 wins: the imagined view finds the others likely. The original gives it e⁻³ of the best.
    states = _states([4.0, 3.5, 1.0], [4.0, 4.0, -3.0])
    assert set(_drawn(states, 1.0, count=1)) == {2}
    assert set(_drawn(states, 1.0, count=1, plausibility=0.04)) == {2}
    assert set(_drawn(states, 1.0, count=1, plausibility=0.06)) == {0}
    assert set(_drawn(states, 1.0, count=1, plausibility=1.0)) == {0}


@pytest.mark.parametrize("plausibility", [0.0, 0.3])
@pytest.mark.parametrize("decoder", ["d2e:alpha=0.5", "adacad:floor=0.4"])
def test_draws_follow_the_decoders_distribution_cut_off_by_the_original(decoder: str, plausibility: float) -> None:
    states = _states([2.0, 1.6, 1.0, -1.0], [0.0, 1.5, 1.0, 0.0])
    scores = named_decoder(decoder)(states.original.double(), states.imagined.double())[0]
    likely = states.original[0].softmax(0) >= plausibility * states.original[0].softmax(0).max()
    assert likely.tolist() == [True, True, True, plausibility == 0]
    expected = (scores.masked_fill(~likely, -torch.inf) / 0.7).softmax(0)
    drawn = _drawn(states, 0.5, temperature=0.7, plausibility=plausibility, decoder=decoder)
    for token, probability in enumerate(expected.tolist()):
        assert drawn[token] / 4000 == pytest.approx(probability, abs=0.03)  # 4 standard errors
    assert drawn[3] == 0 or plausibility == 0


def test_subtracted_states_and_subtracted_logits_lead_to_the_same_choice() -> None:
    torch.manual_seed(0)
    head = nn.Linear(16, 300, bias=False)
    original, imagined, partner = torch.randn(6, 16), torch.randn(3, 16), torch.tensor([1, 3, 4])
    alpha = torch.tensor([0.5, 1.5, 0.2])
    requests = list(range(6))
    for decoding in (DecodingConfig(), DecodingConfig(plausibility=0.2), DecodingConfig(temperature=1.0)):
        by_state = TokenChoice(decoding)(RowStates(original, imagined, partner, head, linear=True), alpha, requests)
        by_logit = TokenChoice(decoding)(RowStates(head(original), head(imagined), partner), alpha, requests)
        assert by_state.tolist() == by_logit.tolist()


def test_a_prompts_draws_do_not_depend_on_its_batch() -> None:
    model = tiny_model(seed=1)
    pairs = token_pairs(random_prompts(7, 5, 40, seed=3), random_prompts(7, 3, 9, seed=4))

    def sampled(batch_size: int, seed: int) -> list[list[int]]:
        decoding = DecodingConfig(temperature=1.5, top_p=0.95, max_new_tokens=10, batch_size=batch_size, seed=seed)
        return generated(model, pairs, decoding, stop_ids=[])

    by_one = sampled(batch_size=1, seed=3)
    assert sampled(batch_size=4, seed=3) == by_one
    assert sampled(batch_size=4, seed=4) != by_one


@pytest.mark.parametrize("how", [{}, {"temperature": 1.0}, {"plausibility": 0.1}, {"temperature": 1.0, "top_k": 2}])
@pytest.mark.parametrize("spoiled", [torch.nan, torch.inf])
def test_no_token_is_chosen_from_scores_with_nan_or_infinity(how: dict[str, Any], spoiled: float) -> None:
    original = torch.tensor([[1.0, 0.0, 9.0], [1.0, 0.0, 9.0], [1.0, -torch.inf, 9.0], [-torch.inf] * 3])
    original[0, 1] = spoiled
    states = RowStates(original, torch.zeros(2, 3), torch.tensor([0, 1]))
    chosen = TokenChoice(DecodingConfig(**how))(states, torch.tensor([0.5, 0.5]), range(4))
    assert chosen.tolist() == [NO_TOKEN, 2, 2, NO_TOKEN]
