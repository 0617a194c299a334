"""Mixed pairs of prompts, and their answers by decoding in process and by transformers' own guidance."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from d2e_sft.decoding import DecodingConfig, PromptPair
from tests.d2e_sft.decoding.pairs import generated

NEW_TOKENS = 12
STOPS = [2]  # SmolLM2's end of turn
_WORDS = (
    "river rain road stone bridge dam field farmer storm boat crop wheat wind market mayor village north flood dry "
    "broke fixed moved sold rose fell before after because while then the a of into over"
)


@dataclass
class Pairs:
    """Prompts with and without context, each with a ratio (0: a plain request), and the reference's answers."""

    prompts: list[PromptPair[Any]]
    answers: list[list[int]] = field(default_factory=list)


def mixed_pairs(tokenizer: Any, count: int, seed: int = 0) -> Pairs:
    """Original prompts of about 35 to 600 tokens, short ones more often; imagined ones of 20 to 60."""
    generator, words = random.Random(seed), _WORDS.split()
    pairs = Pairs([])
    for _ in range(count):
        context = " ".join(generator.choices(words, k=int(10 * 55 ** generator.random() ** 2)))
        question = "Question: what happened " + " ".join(generator.choices(words, k=generator.randint(1, 30))) + "?"
        both = []
        for text in (f"Context: {context}\n{question}", question):
            messages = [{"role": "system", "content": "Answer shortly."}, {"role": "user", "content": text}]
            rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            both.append(tokenizer(rendered, add_special_tokens=False)["input_ids"])
        pairs.prompts.append(PromptPair(*both, alpha=generator.choice([0.0, 0.25, 0.5, 0.5, 0.9])))
    return pairs


def decode_reference(model: Any, pairs: Pairs, new_tokens: int = NEW_TOKENS) -> Pairs:
    """Fill in `answers`, by decoding in process (which is itself tested against guidance)."""
    pairs.answers = generated(model, pairs.prompts, DecodingConfig(max_new_tokens=new_tokens), stop_ids=STOPS)
    return pairs


@torch.inference_mode()
def gap(model: Any, pairs: Pairs, index: int, answer: Sequence[int]) -> float:
    """How far apart the two tokens are, in debiased logits, where an answer leaves the reference's."""
    expected = [*pairs.answers[index], STOPS[0]]
    given = [*answer, STOPS[0]]
    place = next(i for i, (a, b) in enumerate(zip(expected, given, strict=False)) if a != b)
    agreed = expected[:place]
    original, imagined = (
        model(torch.tensor([[*prompt, *agreed]])).logits[0, -1]
        for prompt in (pairs.prompts[index].original, pairs.prompts[index].imagined)
    )
    debiased = original - pairs.prompts[index].alpha * imagined
    return float((debiased[expected[place]] - debiased[given[place]]).abs())


def assert_equal(model: Any, pairs: Pairs, answers: Sequence[Sequence[int]], indices: Sequence[int]) -> None:
    """Token for token, but for ties that float32 cannot tell apart, which are shown to be ties and counted."""
    different = [i for i, answer in zip(indices, answers, strict=True) if list(answer) != pairs.answers[i]]
    gaps = {i: gap(model, pairs, i, answers[list(indices).index(i)]) for i in different}
    print(f"{len(indices) - len(different)} of {len(indices)} answers equal; gaps of the others: {gaps}")
    assert all(value < 1e-3 for value in gaps.values()), gaps
    assert len(different) <= 1 + len(indices) // 50, gaps
