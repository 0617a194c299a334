"""Log-probabilities of given answers from a `vllm.LLM`, like `d2e_sft.decoding.score` in process.

vLLM reports the log-probability of each prompt token, so each option is sent as the end of a prompt. Scores are always
plain: the plug-in does not see the logits of a prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from d2e_sft.decoding.likelihood import OnScored
from d2e_sft.decoding.pairs import OptionScore, TokenPair

# Prompts whose options are in the engine at once: enough to fill it. Earlier scores survive a kill.
_AT_ONCE = 256


def score(
    llm: Any, pairs: Sequence[TokenPair], *, on_batch: OnScored = lambda scores: None
) -> list[list[OptionScore]]:
    """The plain log-probability of each pair's options, in order, after its original prompt.

    `llm` comes from `d2e_sft.vllm.offline.load_llm`. `on_batch` is called with the scores of the options of some
    pairs, by index, as they come.
    """
    from vllm import SamplingParams

    # vLLM requires at least one new token; it is ignored.
    parameters = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=1, detokenize=False)
    results: list[list[OptionScore]] = []
    for start in range(0, len(pairs), _AT_ONCE):
        part = pairs[start : start + _AT_ONCE]
        prompts = [{"prompt_token_ids": [*pair.original, *option]} for pair in part for option in pair.options]
        outputs = iter(llm.generate(prompts, parameters, use_tqdm=False))
        scores = [[_score(next(outputs).prompt_logprobs, pair, option) for option in pair.options] for pair in part]
        results += scores
        on_batch(dict(enumerate(scores, start)))
    return results


def _score(logprobs: Sequence[Any], pair: TokenPair, option: Sequence[int]) -> OptionScore:
    start = len(pair.original)
    found = [logprobs[start + place][option[place]] for place in range(pair.given, len(option))]
    return OptionScore(sum(each.logprob for each in found), len(found), all(each.rank == 1 for each in found))
