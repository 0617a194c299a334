"""`d2e bench decode`: debiased against plain decoding and transformers' guidance, or inside vLLM.

All engines decode the same random prompts greedily without a stop token, so all run the same number of steps. They
take turns, and the figures are medians.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import torch

from d2e_sft.bench.cost import median, share_of_equals, take_turns
from d2e_sft.bench.engines import PREFIX, QUESTION, synthetic_rows
from d2e_sft.bench.step_rows import fields_table
from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.decoding.generation import generate
from d2e_sft.decoding.pairs import TokenPair, token_pairs
from d2e_sft.util.errors import UserError
from d2e_sft.util.table import Table

ALPHA = 0.5  # guidance_scale 2
Engines = dict[str, Callable[[], list[list[int]]]]


@dataclass(frozen=True)
class Decoding:
    """What to measure: every combination of the options of `d2e bench decode`.

    Each engine runs `repeats` times after one run that is not timed, in which a `compiled` step is compiled.
    """

    prompts: Sequence[int]
    batches: Sequence[int]
    new_tokens: Sequence[int]
    repeats: int
    dtype: str
    compiled: bool = False

    def __post_init__(self) -> None:
        for length in self.prompts:
            if length <= PREFIX + QUESTION:
                raise UserError(
                    f"--prompts {length}: too short; expected more than {PREFIX + QUESTION} tokens, of which {PREFIX} "
                    f"are a shared prefix and {QUESTION} a question"
                )


@dataclass(frozen=True)
class Measured:
    """Milliseconds of a whole batch, and their ratios; None if the engine has no such figure.

    `plain_ms` is the same engine with α = 0, which shares prefixes, too. `same_tokens` is the share of debiased
    answers that equal guidance's token for token. `resubmissions` are those of vLLM's last debiased run.
    """

    prompt: int
    batch: int
    new_tokens: int
    plain_ms: float
    debiased_ms: float
    debiased_to_plain: float
    guidance_ms: float | None = None
    debiased_to_guidance: float | None = None
    transformers_plain_ms: float | None = None
    same_tokens: float | None = None
    resubmissions: int | None = None


def bench_decoding(
    name: str, asked: Decoding, *, in_vllm: bool = False, progress: Callable[[Measured], object] = lambda row: None
) -> list[Measured]:
    """Measure every combination, in this process or in vLLM; UserError if it is missing or the model does not load."""
    if in_vllm:
        measure = _in_vllm(name, asked)
    else:
        from d2e_sft.model.loading import load_model

        model = load_model(name, dtype=asked.dtype).model.eval()
        model = model.to("cuda" if torch.cuda.is_available() else "cpu")
        measure = partial(measure_decoding, model, repeats=asked.repeats, compiled=asked.compiled)
    measured = []
    for length, batch, new in product(asked.prompts, asked.batches, asked.new_tokens):
        measured.append(measure(length, batch, new))
        progress(measured[-1])
    return measured


def measure_decoding(model: Any, length: int, batch: int, new: int, repeats: int, compiled: bool = False) -> Measured:
    """Measure one combination on a model in eval mode."""
    pairs = random_pairs(length, batch, model.config.get_text_config().vocab_size)
    medians, answers = _milliseconds(decoding_engines(model, pairs, new, compiled=compiled), repeats, model.device)
    return replace(
        _measured(length, batch, new, medians),
        guidance_ms=round(medians["guidance"], 1),
        debiased_to_guidance=round(medians["debiased"] / medians["guidance"], 3),
        transformers_plain_ms=round(medians["transformers_plain"], 1),
        same_tokens=share_of_equals(answers["debiased"], answers["guidance"]),
    )


def _measured(length: int, batch: int, new_tokens: int, medians: dict[str, float]) -> Measured:
    plain, debiased = medians["plain"], medians["debiased"]
    return Measured(length, batch, new_tokens, round(plain, 1), round(debiased, 1), round(debiased / plain, 3))


def _in_vllm(model_name: str, asked: Decoding) -> Callable[[int, int, int], Measured]:
    """Load an engine, and return what measures one combination on it, each run from an empty prefix cache."""
    from d2e_sft.vllm.engine import require_vllm

    require_vllm()
    from d2e_sft.vllm import offline

    longest = max(asked.prompts) + max(asked.new_tokens) + 1
    llm = offline.load_llm(model_name, dtype=asked.dtype, max_model_len=longest, enable_prefix_caching=True)

    def measure(length: int, batch: int, new_tokens: int) -> Measured:
        pairs = random_pairs(length, batch, llm.llm_engine.vllm_config.model_config.get_vocab_size())
        resubmitted: list[int] = []

        def decode(alpha: float) -> list[list[int]]:
            llm.reset_prefix_cache()
            resubmitted.clear()
            decoding = DecodingConfig(alpha=alpha, max_new_tokens=new_tokens)
            return offline.generate(llm, pairs, decoding, stop_ids=[], on_resubmission=resubmitted.append)

        engines: Engines = {"plain": partial(decode, 0.0), "debiased": partial(decode, ALPHA)}
        medians, _ = _milliseconds(engines, asked.repeats, torch.device("cpu"))
        return replace(_measured(length, batch, new_tokens, medians), resubmissions=len(resubmitted))

    return measure


def random_pairs(length: int, batch: int, vocabulary: int) -> list[TokenPair]:
    """Return prompts of random tokens, with and without a context."""
    rows = synthetic_rows(batch, length - PREFIX - QUESTION, vocabulary)
    return token_pairs([row["original"] for row in rows], [row["imagined"] for row in rows])


def _milliseconds(engines: Engines, repeats: int, device: torch.device) -> tuple[dict[str, float], dict[str, Any]]:
    """Return the median milliseconds and the answers of each engine; they take turns."""
    costs, answers = take_turns(engines, repeats, device)
    return {name: 1000 * median(own).clock_s for name, own in costs.items()}, answers


def decoding_engines(
    model: Any, pairs: Sequence[TokenPair], new_tokens: int, *, compiled: bool = False, of_transformers: Any = None
) -> Engines:
    """Return the four engines on these prompts; `of_transformers` is the model that transformers' engines take."""
    theirs = model if of_transformers is None else of_transformers

    def ours(alpha: float) -> list[list[int]]:
        decoding = DecodingConfig(alpha=alpha, max_new_tokens=new_tokens, compiled=compiled)
        return generate(model, pairs, decoding, stop_ids=())

    def transformers(**options: Any) -> list[list[int]]:
        ids = torch.tensor([list(pair.original) for pair in pairs], device=model.device)
        output = theirs.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=new_tokens,
            min_new_tokens=None,
            eos_token_id=None,
            pad_token_id=0,
            **options,
        )
        answers: list[list[int]] = output[:, ids.shape[1] :].tolist()
        return answers

    def guidance() -> list[list[int]]:
        ids = torch.tensor([list(pair.imagined or ()) for pair in pairs], device=model.device)
        negative = {"negative_prompt_ids": ids, "negative_prompt_attention_mask": torch.ones_like(ids)}
        return transformers(guidance_scale=1 / (1 - ALPHA), **negative)

    return {
        "plain": partial(ours, 0.0),
        "debiased": partial(ours, ALPHA),
        "guidance": guidance,
        "transformers_plain": transformers,
    }


# column → field and format
_COLUMNS = {
    "prompt": ("prompt", "{}"),
    "batch": ("batch", "{}"),
    "new": ("new_tokens", "{}"),
    "plain ms": ("plain_ms", "{:,.0f}"),
    "debiased ms": ("debiased_ms", "{:,.0f}"),
    "guidance ms": ("guidance_ms", "{:,.0f}"),
    "debiased / plain": ("debiased_to_plain", "{:.2f}"),
    "debiased / guidance": ("debiased_to_guidance", "{:.2f}"),
    "transformers' plain ms": ("transformers_plain_ms", "{:,.0f}"),
    "same tokens as guidance": ("same_tokens", "{:.0%}"),
    "resubmissions": ("resubmissions", "{}"),
}


def as_table(measured: Sequence[Measured]) -> Table:
    """Return the rows as a table, with the columns that the engine has."""
    return fields_table(_COLUMNS, [vars(row) for row in measured], keys=3)
