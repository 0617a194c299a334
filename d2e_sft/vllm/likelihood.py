"""Log-probabilities of given answers from a `vllm.LLM`, as `d2e_sft.decoding.score_options` gives them in process.

vLLM tells the log-probability of each token of a prompt, so an option is scored as the end of one. It is always the
model's own distribution: no plug-in sees the logits of a prompt, and a pair cannot be combined.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from d2e_sft.decoding import OptionScore

# Prompts whose options are in the engine at once: enough to fill it, and what came before a kill is kept.
_AT_ONCE = 256


def score_options(
    llm: Any,
    prompts: Sequence[Sequence[int]],
    options: Sequence[Sequence[Sequence[int]]],
    *,
    given: Sequence[int],
    on_scored: Callable[[list[int], list[list[OptionScore]]], object] = lambda indices, scores: None,
) -> list[list[OptionScore]]:
    """The log-probability of each prompt's options, plainly.

    Args:
        llm: a vLLM engine; see `d2e_sft.vllm.offline.load_llm`.
        prompts: token ids.
        options: for each prompt the token ids of its options.
        given: for each prompt, how many of its options' first tokens are given and not scored.
        on_scored: called with the indices of some prompts and the scores of their options, as they come.

    Returns:
        for each prompt the scores of its options, in order.
    """
    from vllm import SamplingParams

    # One token has to be generated, and is not looked at.
    parameters = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=1, detokenize=False)
    results: list[list[OptionScore]] = []
    for start in range(0, len(prompts), _AT_ONCE):
        indices = list(range(start, min(start + _AT_ONCE, len(prompts))))
        texts = [[*prompts[i], *option] for i in indices for option in options[i]]
        outputs = iter(llm.generate([{"prompt_token_ids": text} for text in texts], parameters, use_tqdm=False))
        scores = [
            [_score(next(outputs).prompt_logprobs, option, len(prompts[i]), given[i]) for option in options[i]]
            for i in indices
        ]
        results += scores
        on_scored(indices, scores)
    return results


def _score(of_prompt: Sequence[Any], option: Sequence[int], start: int, given: int) -> OptionScore:
    found = [of_prompt[start + place][option[place]] for place in range(given, len(option))]
    return OptionScore(sum(each.logprob for each in found), len(found), all(each.rank == 1 for each in found))
