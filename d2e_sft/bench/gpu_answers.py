"""Cases of `d2e bench gpu` with many prompts: an evaluation, and contexts that the refiner by likelihood scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from d2e_sft.bench.decode import random_pairs
from d2e_sft.bench.engines import PREFIX, QUESTION, synthetic_rows
from d2e_sft.bench.samples import Measured, compare_ways
from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.decoding.generation import generate
from d2e_sft.decoding.likelihood import score
from d2e_sft.decoding.pairs import PromptPair, TokenPair

_CONTEXTS = 8  # contexts of a sample
_ENDS = 8  # every eighth token of the vocabulary ends an answer, so that answers of random weights differ in length


def evaluation(model: Any, prompt: int, samples: int, new_tokens: int, repeats: int) -> list[Measured]:
    """Decode prompts debiased in batches that wait for their longest answer, and with refill as `d2e eval` does."""
    words = model.config.get_text_config().vocab_size
    pairs, stops = random_pairs(prompt, samples, words), range(0, words, _ENDS)

    def decode(batch_size: int | None) -> list[list[int]]:
        how = DecodingConfig(max_new_tokens=new_tokens, batch_size=batch_size)
        return generate(model, pairs, how, stop_ids=stops)

    sizes = {f"batches of {DecodingConfig.GROUP_BATCH_SIZE}": DecodingConfig.GROUP_BATCH_SIZE, "refilled": None}
    return compare_ways({way: partial(decode, size) for way, size in sizes.items()}, pairs, repeats, model.device)


def refiner(model: Any, prompt: int, samples: int, new_tokens: int, repeats: int) -> list[Measured]:
    """Find which context makes an answer likeliest, one at a time and all of a sample packed; each lacks one part."""
    rows = synthetic_rows(samples, prompt - PREFIX - QUESTION, model.config.get_text_config().vocab_size)
    candidates = [_without_a_part(row["original"], [row["answer"], row["answer"][::-1]]) for row in rows]
    how = DecodingConfig(alpha=0.0, batch_size=_CONTEXTS)

    def best(at_once: int) -> list[list[int]]:
        found = []
        for pairs in candidates:
            parts = [pairs[start : start + at_once] for start in range(0, len(pairs), at_once)]
            logprobs = [options[0].logprob for part in parts for options in score(model, part, how)]
            found.append([max(range(len(pairs)), key=logprobs.__getitem__)])
        return found

    ways = {"a context at a time": partial(best, 1), "packed": partial(best, _CONTEXTS)}
    return compare_ways(ways, [pair for pairs in candidates for pair in pairs], repeats, model.device)


def _without_a_part(prompt: Sequence[int], answers: Sequence[Sequence[int]]) -> list[TokenPair]:
    size = (len(prompt) - PREFIX - QUESTION) // _CONTEXTS
    starts = range(PREFIX, PREFIX + size * _CONTEXTS, size)
    return [PromptPair([*prompt[:start], *prompt[start + size :]], options=answers) for start in starts]


TASKS: Mapping[str, Callable[..., list[Measured]]] = {"evaluation": evaluation, "refiner by likelihood": refiner}
