"""`d2e bench vllm`: what debiased decoding costs inside vLLM beside plain decoding, on the same engine.

Prompts are random tokens laid out as evaluation's are: a prefix that all share, a context, a question; the imagined
prompt has no context. Both ways answer every prompt with the same number of tokens, from an empty prefix cache, and
take turns, so that whatever else the machine does meets them alike; the figures are medians.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.util.table import Table

PREFIX, QUESTION = 40, 30


@dataclass(frozen=True)
class Throughput:
    """Seconds for all prompts, plain and debiased; `resubmissions` of the last debiased run."""

    prompts: int
    shortest: int
    longest: int
    new_tokens: int
    plain_s: float
    debiased_s: float
    debiased_to_plain: float
    plain_tokens_per_s: float
    debiased_tokens_per_s: float
    resubmissions: int
    repeats: int
    engine: dict[str, Any]


def bench_vllm(
    llm: Any,
    *,
    prompts: int,
    shortest: int,
    longest: int,
    new_tokens: int,
    repeats: int,
    alpha: float = 0.5,
    progress: Callable[[str], object] = lambda line: None,
) -> Throughput:
    """Time both ways on an engine of `d2e_sft.vllm.offline.load_llm`.

    Args:
        prompts: how many, each with a length drawn from `shortest` to `longest` tokens.
        new_tokens: of every answer; no token stops one.
        repeats: timed runs of each way, after one that is not counted.
    """
    from d2e_sft.decoding.pairs import token_pairs
    from d2e_sft.vllm.offline import generate

    pairs = token_pairs(*_prompts(llm, prompts, shortest, longest))
    seconds: dict[str, list[float]] = {"plain": [], "debiased": []}
    resubmitted: list[int] = []
    for repeat in range(repeats + 1):
        for way, alpha_of_way in (("plain", 0.0), ("debiased", alpha)):
            resubmitted.clear()
            decoding = DecodingConfig(alpha=alpha_of_way, max_new_tokens=new_tokens)
            llm.reset_prefix_cache()
            started = time.perf_counter()
            answers = generate(llm, pairs, decoding, stop_ids=[], on_resubmission=resubmitted.append)
            taken = time.perf_counter() - started
            assert all(len(answer) == new_tokens for answer in answers)
            if repeat:
                seconds[way].append(taken)
            progress(f"{way}: {taken:.1f} s" + ("" if repeat else " (not counted)"))
    plain, debiased = statistics.median(seconds["plain"]), statistics.median(seconds["debiased"])
    config = llm.llm_engine.vllm_config
    return Throughput(
        prompts=prompts,
        shortest=shortest,
        longest=longest,
        new_tokens=new_tokens,
        plain_s=plain,
        debiased_s=debiased,
        debiased_to_plain=debiased / plain,
        plain_tokens_per_s=prompts * new_tokens / plain,
        debiased_tokens_per_s=prompts * new_tokens / debiased,
        resubmissions=len(resubmitted),
        repeats=repeats,
        engine={
            "dtype": str(config.model_config.dtype).removeprefix("torch."),
            "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
            "max_num_seqs": config.scheduler_config.max_num_seqs,
            "prefix_caching": bool(config.cache_config.enable_prefix_caching),
            "block_size": config.cache_config.block_size,
            "blocks": config.cache_config.num_gpu_blocks,
        },
    )


def as_table(measured: Throughput) -> Table:
    """Both ways in a table, with their ratio below it."""
    rows = [
        ("plain", f"{measured.plain_s:.1f}", f"{measured.plain_tokens_per_s:,.0f}"),
        ("debiased", f"{measured.debiased_s:.1f}", f"{measured.debiased_tokens_per_s:,.0f}"),
    ]
    ratio = f"debiased / plain: {measured.debiased_to_plain:.2f}; resubmissions: {measured.resubmissions}"
    return Table.of(("decoding", "seconds", "new tokens/s"), rows, notes=[ratio])


def _prompts(llm: Any, count: int, shortest: int, longest: int) -> tuple[list[list[int]], list[list[int]]]:
    generator = random.Random(0)
    vocab = llm.llm_engine.vllm_config.model_config.get_vocab_size()

    def some(length: int) -> list[int]:
        return [generator.randrange(100, vocab) for _ in range(length)]

    prefix = some(PREFIX)
    questions = [some(QUESTION) for _ in range(count)]
    contexts = [some(generator.randint(shortest, longest) - PREFIX - QUESTION) for _ in range(count)]
    originals = [[*prefix, *context, *question] for context, question in zip(contexts, questions, strict=True)]
    return originals, [[*prefix, *question] for question in questions]
