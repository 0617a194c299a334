"""Options scored from vLLM's log-probabilities of prompts, of a stand-in that computes them with a tiny model."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from itertools import chain
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.decoding import PromptPair
from d2e_sft.vllm.offline import score
from tests.d2e_sft.decoding.pairs import scored
from tests.tiny import tiny_model

PROMPTS = [[10, 11, 12], [20, 21], [30, 31, 32, 33]]
OPTIONS = [[[40, 41, 42], [40, 43]], [[50, 51], [50, 52, 53], [50, 54]], [[60], [61]]]
PAIRS = [PromptPair(*fields) for fields in zip(PROMPTS, [None] * 3, OPTIONS, [1, 1, 0], strict=True)]
PLAINLY = DecodingConfig(alpha=0)


@dataclass
class SamplingParams:
    max_tokens: int
    temperature: float
    prompt_logprobs: int
    detokenize: bool


class PromptLogprobs:
    """What `vllm.LLM.generate` gives: of the first token nothing, of others the likeliest tokens and their own."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.sent: list[int] = []

    def generate(self, prompts: list[dict[str, list[int]]], parameters: SamplingParams, use_tqdm: bool) -> list[Any]:
        self.sent.append(len(prompts))
        return [
            SimpleNamespace(prompt_logprobs=self._of(prompt["prompt_token_ids"], parameters.prompt_logprobs))
            for prompt in prompts
        ]

    def _of(self, ids: list[int], count: int) -> list[dict[int, Any] | None]:
        with torch.no_grad():
            logprobs = self.model(torch.tensor([ids])).logits[0].log_softmax(-1)
        found: list[dict[int, Any] | None] = [None]
        for token, row in zip(ids[1:], logprobs, strict=False):
            order = row.argsort(descending=True).tolist()
            wanted = {*order[:count], token}
            found.append({t: SimpleNamespace(logprob=row[t].item(), rank=order.index(t) + 1) for t in wanted})
        return found


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> PromptLogprobs:
    vllm = ModuleType("vllm")
    vllm.SamplingParams = SamplingParams  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    return PromptLogprobs(tiny_model(seed=1))


def test_an_option_scores_as_in_process(llm: PromptLogprobs) -> None:
    every = replace(PAIRS[2], options=[[token] for token in range(261)])
    best = scored(llm.model, [every], PLAINLY)[0]
    greedy = max(range(261), key=lambda token: best[token].logprob)
    pairs = [*PAIRS[:2], replace(PAIRS[2], options=[*PAIRS[2].options, [greedy]])]
    ours, expected = list(dict(score(llm, pairs)).values()), scored(llm.model, pairs, PLAINLY)
    for one, other in zip(chain(*ours), chain(*expected), strict=True):
        assert one.logprob == pytest.approx(other.logprob, rel=1e-5)
        assert (one.tokens, one.greedy) == (other.tokens, other.greedy)
    assert ours[2][-1].greedy


def test_scores_are_reported_as_they_come(llm: PromptLogprobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("d2e_sft.vllm.offline._AT_ONCE", 2)
    for index, _ in score(llm, PAIRS):
        assert llm.sent == ([5, 2] if index == 2 else [5]), "the options of two prompts, then of the third"
