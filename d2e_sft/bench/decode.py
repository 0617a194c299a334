"""`d2e bench decode` and `d2e bench samples`: what debiased decoding costs.

`decode` compares it with plain decoding and transformers' guidance, or inside vLLM. All engines decode the same random
prompts greedily without a stop token, so all run the same number of steps. `samples` compares batches with refill on a
file of samples. On a CPU its times are of the processor, so that other work on the machine counts less.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, product
from typing import Any

import torch

from d2e_sft.bench.harness import Measurement, Row, in_turns, open_model, rows_table, share_of_equals
from d2e_sft.bench.train import PREFIX, QUESTION, synthetic_rows
from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import EventSample
from d2e_sft.data.views import ViewEncoder
from d2e_sft.decoding.generation import generate, sample_pairs, stop_token_ids
from d2e_sft.decoding.pairs import TokenPair, finished, token_pairs
from d2e_sft.model.loading import load_model
from d2e_sft.model.onednn import ready_to_decode
from d2e_sft.util.errors import UserError
from d2e_sft.util.table import Table
from d2e_sft.util.terminal import say

ALPHA = 0.5  # guidance_scale 2
Variants = Mapping[str, Callable[[], list[list[int]]]]


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
    """Measure every combination of lengths and batches, in this process or in vLLM; see `decoding_row`."""
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
        rows.append(measure(length, batch, new))
        say(f"prompt {length}, batch {batch}, {new} new: {rows[-1]['debiased_to_plain']} × plain", err=True)
    return rows


def _measure(model: Any, length: int, batch: int, new: int, repeats: int, compiled: bool = False) -> Row:
    pairs = random_pairs(length, batch, model.config.get_text_config().vocab_size)
    *_, measured = in_turns(decoding_engines(model, pairs, new, compiled=compiled), repeats, model.device)
    return decoding_row(measured, length, batch, new)


def decoding_row(measured: Mapping[str, Measurement], prompt: int, batch: int, new_tokens: int) -> Row:
    """Return milliseconds of a whole batch and their ratios; None for an engine that was not measured.

    `plain_ms` is the same engine with α = 0, which shares prefixes, too. `same_tokens` is the share of debiased
    answers that equal guidance's token for token.
    """
    ms = {name: 1000 * one.cost.clock_s for name, one in measured.items()}
    row: Row = {"prompt": prompt, "batch": batch, "new_tokens": new_tokens}
    row |= {f"{name}_ms": round(ms[name], 1) if name in ms else None for name in _ENGINES}
    row |= {f"{name}_cpu_ms": round(1000 * one.cost.cpu_s, 1) for name, one in measured.items()}
    row["debiased_to_plain"] = round(ms["debiased"] / ms["plain"], 3)
    if "guidance" in ms:
        row["debiased_to_guidance"] = round(ms["debiased"] / ms["guidance"], 3)
        row["same_tokens"] = share_of_equals(measured["debiased"].result, measured["guidance"].result)
    return row


def _in_vllm(name: str, dtype: str, longest: int, repeats: int) -> Callable[[int, int, int], Row]:
    """Load an engine, and return what measures one combination on it, each run from an empty prefix cache."""
    from d2e_sft.vllm.engine import require_vllm

    require_vllm()
    from d2e_sft.vllm import offline

    llm = offline.load_llm(name, dtype=dtype, max_model_len=longest, enable_prefix_caching=True)

    def measure(length: int, batch: int, new_tokens: int) -> Row:
        pairs = random_pairs(length, batch, llm.llm_engine.vllm_config.model_config.get_vocab_size())
        resubmitted: list[int] = []

        def decode(alpha: float) -> list[list[int]]:
            llm.reset_prefix_cache()
            decoding = DecodingConfig(alpha=alpha, max_new_tokens=new_tokens)
            outputs = finished(offline.generate(llm, pairs, decoding, stop_ids=[]))
            resubmitted[:] = [output.resubmissions for output in outputs]
            return [output.tokens for output in outputs]

        engines = {"plain": partial(decode, 0.0), "debiased": partial(decode, ALPHA)}
        *_, measured = in_turns(engines, repeats, torch.device("cpu"))
        return {**decoding_row(measured, length, batch, new_tokens), "resubmissions": sum(resubmitted)}

    return measure


def random_pairs(length: int, batch: int, vocabulary: int) -> list[TokenPair]:
    """Return prompts of random tokens, with and without a context."""
    rows = synthetic_rows(batch, length - PREFIX - QUESTION, vocabulary)
    return token_pairs([row["original"] for row in rows], [row["imagined"] for row in rows])


_ENGINES = ("plain", "debiased", "guidance", "transformers_plain")


def decoding_engines(
    model: Any, pairs: Sequence[TokenPair], new_tokens: int, *, compiled: bool = False, of_transformers: Any = None
) -> Variants:
    """Return the four engines on these prompts; `of_transformers` is the model that transformers' engines take."""
    theirs = model if of_transformers is None else of_transformers

    def ours(alpha: float) -> list[list[int]]:
        decoding = DecodingConfig(alpha=alpha, max_new_tokens=new_tokens, compiled=compiled)
        return [output.tokens for output in finished(generate(model, None, pairs, decoding, stop_ids=()))]

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

    return dict(zip(_ENGINES, (partial(ours, 0.0), partial(ours, ALPHA), guidance, transformers), strict=True))


# column → field and format
_DECODING = {
    "shape": ("shape", "{}"),
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
    "/ roofline": ("debiased_to_roofline", "{:.1f}"),
}


def decoding_table(rows: Sequence[Row]) -> Table:
    return rows_table(_DECODING, rows, keys=3)


# Variant of `d2e bench samples` → whether weights are reordered, and the batch size; the first is the reference.
SAMPLE_VARIANTS: Mapping[str, tuple[bool, int | None]] = {
    "batches of 16, torch's layers": (False, 16),
    "batches of 16": (True, 16),
    "refilled": (True, None),
}


def bench_samples(name: str, samples: Sequence[EventSample], decoding: DecodingConfig, repeats: int) -> list[Row]:
    """Decode the samples in every variant, see `answer_rows`; UserError if the model cannot be loaded."""
    loaded = load_model(name)
    models = {False: loaded.model.eval(), True: ready_to_decode(load_model(name).model, "cpu")}
    encoder = ViewEncoder(loaded.tokenizer, load_prompt_set("default"), ("original", "imagined"))
    pairs, stop_ids = sample_pairs(encoder, samples), stop_token_ids(models[False], encoder.end_of_turn)

    def decode(variant: str) -> list[list[int]]:
        say(variant, err=True)
        reordered, batch_size = SAMPLE_VARIANTS[variant]
        how = replace(decoding, batch_size=batch_size)
        outputs = generate(models[reordered], None, pairs, how, stop_ids=stop_ids)
        return [output.tokens for output in finished(outputs)]

    variants = {variant: partial(decode, variant) for variant in SAMPLE_VARIANTS}
    return answer_rows(variants, pairs, repeats, models[True].device)


def answer_rows(variants: Variants, pairs: Sequence[TokenPair], repeats: int, device: torch.device) -> list[Row]:
    """Run variants that answer the prompts of all samples in turns; returns a row for each.

    Rates are per second of the processor, on a GPU of the clock. `to_first` is how many times as many samples a second
    as the first variant, the median over the turns; `same` is the share of answers that equal its token for token.
    """
    on_cpu = device.type == "cpu"
    *_, measured = in_turns(variants, repeats, device, warm_up=not on_cpu)
    first = next(iter(measured.values()))
    prompts = sum(len(pair.original) + len(pair.imagined or ()) for pair in pairs)
    rows: list[Row] = []
    for variant, one in measured.items():
        seconds, of_first = (
            [cost.cpu_s if on_cpu else cost.clock_s for cost in taken.costs] for taken in (one, first)
        )
        per_s, answers = 1 / statistics.median(seconds), one.result
        rows.append(
            {
                "variant": variant,
                "samples": len(answers),
                "cpu_s": round(one.cost.cpu_s, 2),
                "clock_s": round(one.cost.clock_s, 3),
                "samples_per_s": round(len(answers) * per_s, 3),
                "tokens_per_s": round((prompts + len([*chain(*answers)])) * per_s, 1),
                "to_first": round(statistics.median(a / b for a, b in zip(of_first, seconds, strict=True)), 3),
                "same": share_of_equals(answers, first.result),
            }
        )
    return rows


_SAMPLES = {
    "shape": ("shape", "{}"),
    "task": ("task", "{}"),
    "variant": ("variant", "{}"),
    "samples": ("samples", "{:,}"),
    "CPU s": ("cpu_s", "{:,.1f}"),
    "samples / s": ("samples_per_s", "{:.2f}"),
    "tokens / s": ("tokens_per_s", "{:,.0f}"),
    "× first": ("to_first", "{:.2f}"),
    "same answers": ("same", "{:.1%}"),
}


def samples_table(rows: Sequence[Row]) -> Table:
    return rows_table(_SAMPLES, rows, keys=3 if rows and "shape" in rows[0] else 1)
