"""`d2e bench decode`: what debiased decoding costs, beside plain decoding and transformers' guidance, or in vLLM.

All engines decode the same random prompts greedily without a stop token, so all run the same number of steps.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import torch

from d2e_sft.bench.harness import Measurement, Row, in_turns, open_model
from d2e_sft.bench.train import PREFIX, QUESTION, synthetic_rows
from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.decoding.generation import generate
from d2e_sft.decoding.pairs import TokenPair, finished, token_pairs
from d2e_sft.util.errors import UserError
from d2e_sft.util.terminal import say

ALPHA = 0.5  # guidance_scale 2


def bench_decoding(
    name: str,
    *,
    prompts: Sequence[int],
    batches: Sequence[int],
    new_tokens: Sequence[int],
    repeats: int,
    dtype: str,
    compiled: bool = False,
    in_vllm: bool = False,
    device: torch.device | None = None,
) -> list[Row]:
    """Measure every combination of lengths and batches, in this process or in vLLM; see `decoding_rows`."""
    for length in prompts:
        if length <= PREFIX + QUESTION:
            raise UserError(
                f"--prompts {length}: too short; expected more than {PREFIX + QUESTION} tokens, of which {PREFIX} "
                f"are a shared prefix and {QUESTION} a question"
            )
    if in_vllm:
        measure = _in_vllm(name, dtype, max(prompts) + max(new_tokens) + 1, repeats)
    else:
        on = torch.device("cuda" if torch.cuda.is_available() else "cpu") if device is None else device
        measure = partial(_measure, open_model(name, on, dtype).eval(), repeats=repeats, compiled=compiled)
    rows = []
    for length, batch, new in product(prompts, batches, new_tokens):
        rows += measure(length, batch, new)
        say(f"prompt {length}, batch {batch}, {new} new: measured", err=True)
    return rows


def _measure(model: Any, length: int, batch: int, new: int, repeats: int, compiled: bool = False) -> list[Row]:
    pairs = random_pairs(length, batch, model.config.get_text_config().vocab_size)
    *_, measured = in_turns(decoding_engines(model, pairs, new, compiled=compiled), repeats, model.device)
    return decoding_rows(measured, prompt=length, batch=batch, new_tokens=new)


def decoding_rows(measured: Mapping[str, Measurement], **facts: Any) -> list[Row]:
    """Return a row for each engine, with the milliseconds of a whole batch.

    `plain` is the same engine with α = 0, which shares prefixes, too. `same` is the share of answers that equal those
    of transformers' engine token for token.
    """
    bases = {name: measured.get(name) for name in ("plain", "guidance")}
    rows = []
    for name, measurement in measured.items():
        peer = measured.get(_PEERS.get(name, ""))
        rows.append(
            measurement.row(bases, **facts, variant=name, same=None if peer is None else measurement.same_as(peer))
        )
    return rows


def _in_vllm(name: str, dtype: str, longest: int, repeats: int) -> Callable[[int, int, int], list[Row]]:
    """Load an engine, and return what measures one combination on it, each run from an empty prefix cache."""
    from d2e_sft.vllm.engine import require_vllm

    require_vllm()
    from d2e_sft.vllm import offline

    llm = offline.load_llm(name, dtype=dtype, max_model_len=longest, enable_prefix_caching=True)

    def measure(length: int, batch: int, new_tokens: int) -> list[Row]:
        pairs = random_pairs(length, batch, llm.llm_engine.vllm_config.model_config.get_vocab_size())
        resubmitted: list[int] = []

        def decode(alpha: float) -> list[list[int]]:
            llm.reset_prefix_cache()
            decoding = DecodingConfig(alpha=alpha, max_new_tokens=new_tokens)
            outputs = finished(offline.generate(llm, pairs, decoding, stop_ids=[]))
            resubmitted[:] = [output.resubmissions for output in outputs]
            return [output.tokens for output in outputs]

        engines = {"plain": partial(decode, 0.0), "debiased": partial(decode, ALPHA)}
        *_, measured = in_turns(engines, repeats, torch.device("cpu"), by_clock=True)
        plain, debiased = decoding_rows(measured, prompt=length, batch=batch, new_tokens=new_tokens)
        return [plain, {**debiased, "resubmissions": sum(resubmitted)}]

    return measure


def random_pairs(length: int, batch: int, vocabulary: int) -> list[TokenPair]:
    """Return prompts of random tokens, with and without a context."""
    rows = synthetic_rows(batch, length - PREFIX - QUESTION, vocabulary)
    return token_pairs([row["original"] for row in rows], [row["imagined"] for row in rows])


_PEERS = {"plain": "transformers_plain", "debiased": "guidance"}


def decoding_engines(
    model: Any, pairs: Sequence[TokenPair], new_tokens: int, *, compiled: bool = False
) -> Mapping[str, Callable[[], list[list[int]]]]:
    """Return the four engines on these prompts."""

    def ours(alpha: float) -> list[list[int]]:
        decoding = DecodingConfig(alpha=alpha, max_new_tokens=new_tokens, compiled=compiled)
        return [output.tokens for output in finished(generate(model, None, pairs, decoding, stop_ids=()))]

    def transformers(**options: Any) -> list[list[int]]:
        ids = torch.tensor([list(pair.original) for pair in pairs], device=model.device)
        output = model.generate(
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
