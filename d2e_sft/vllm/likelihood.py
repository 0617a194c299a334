"""Log-probabilities of given answers from a `vllm.LLM`, like `d2e_sft.decoding.score` in process.

vLLM reports the log-probability of each prompt token, so each option is sent as the end of a prompt. Scores are always
plain: the plug-in does not see the logits of a prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from d2e_sft.decoding.pairs import OptionScore, TokenPair

# Prompts whose options are in the engine at once: enough to fill it. Earlier scores survive a kill.
_AT_ONCE = 256


def score(llm: Any, pairs: Sequence[TokenPair]) -> Iterator[tuple[int, list[OptionScore]]]:
    """Yield the index of each pair and the plain log-probability of its options after its original prompt.

    `llm` comes from `d2e_sft.vllm.offline.load_llm`.
    """
    from vllm import SamplingParams

    # vLLM requires at least one new token; it is ignored.
    parameters = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=1, detokenize=False)
    for start in range(0, len(pairs), _AT_ONCE):
        part = pairs[start : start + _AT_ONCE]
        prompts = [{"prompt_token_ids": [*pair.original, *option]} for pair in part for option in pair.options]
        outputs = iter(llm.generate(prompts, parameters, use_tqdm=False))
        for index, pair in enumerate(part, start):
            yield index, [_score(next(outputs).prompt_logprobs, pair, option) for option in pair.options]


def _score(logprobs: Sequence[Any], pair: TokenPair, option: Sequence[int]) -> OptionScore:
    start = len(pair.original)
    found = [logprobs[start + place][option[place]] for place in range(pair.given, len(option))]
    return OptionScore(sum(each.logprob for each in found), len(found), all(each.rank == 1 for each in found))
