"""`d2e bench decode`: what debiased decoding costs beside plain decoding and beside transformers' guidance.

All decode the same random prompts greedily, with no stop token, so that all run the same number of steps. They take
turns, and the figures are medians.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch

from d2e_sft.bench.engines import PREFIX, QUESTION, synthetic_rows
from d2e_sft.decoding import DecodingConfig, generate_debiased
from d2e_sft.model.device import frozen_heap, timed
from d2e_sft.model.loading import load_model
from d2e_sft.util.errors import UserError
from d2e_sft.util.table import Table

ALPHA = 0.5  # guidance_scale 2


@dataclass(frozen=True)
class Measured:
    """Milliseconds of a whole batch, and their ratios.

    `plain_ms` is this engine with α = 0, the same sharing of prefixes included: the harder one to come near.
    `same_tokens` is the share of the debiased answers that are guidance's, token for token.
    """

    prompt: int
    batch: int
    new_tokens: int
    plain_ms: float
    debiased_ms: float
    guidance_ms: float
    debiased_to_plain: float
    debiased_to_guidance: float
    transformers_plain_ms: float
    same_tokens: float


def bench_decoding(
    model_name: str,
    *,
    prompts: Sequence[int],
    batches: Sequence[int],
    new_tokens: Sequence[int],
    repeats: int,
    dtype: str,
    compiled: bool = False,
    progress: Callable[[Measured], object] = lambda row: None,
) -> list[Measured]:
    """Measure every combination of prompt length, batch size and number of new tokens.

    Args:
        prompts: tokens of an original prompt: a prefix of 130 that all share, a context and a question of 30.
        repeats: timed runs of each engine, after one that is not timed.
        dtype: torch dtype of the weights.
        compiled: compile the step of `plain` and `debiased`; the run that is not timed compiles.

    Raises:
        UserError: a prompt is too short to hold a context.
    """
    for length in prompts:
        if length <= PREFIX + QUESTION:
            raise UserError(
                f"--prompts {length}: too short; expected more than {PREFIX + QUESTION} tokens, of which {PREFIX} are "
                f"a shared prefix and {QUESTION} a question"
            )
    model = load_model(model_name, dtype=dtype).model.eval()
    model = model.to("cuda" if torch.cuda.is_available() else "cpu")
    measured = []
    for length, batch, new in product(prompts, batches, new_tokens):
        measured.append(measure_decoding(model, length, batch, new, repeats, compiled))
        progress(measured[-1])
    return measured


def measure_decoding(
    model: Any, length: int, batch: int, new_tokens: int, repeats: int, compiled: bool = False
) -> Measured:
    """Measure one combination on a model in eval mode, in turns; see `bench_decoding`."""
    rows = synthetic_rows(batch, length - PREFIX - QUESTION, model.config.get_text_config().vocab_size)
    originals, imagined = [row["original"] for row in rows], [row["imagined"] for row in rows]
    engines = _engines(model, originals, imagined, new_tokens, compiled)
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    answers: dict[str, list[list[int]]] = {}
    with frozen_heap():
        for repeat in range(repeats + 1):
            for name, engine in engines.items():
                gc.collect()
                answers[name], taken = timed(engine, model.device)
                if repeat:
                    seconds[name].append(taken)
    medians = {name: 1000 * statistics.median(runs) for name, runs in seconds.items()}
    equal = [one == other for one, other in zip(answers["debiased"], answers["guidance"], strict=True)]
    return Measured(
        prompt=length,
        batch=batch,
        new_tokens=new_tokens,
        plain_ms=round(medians["plain"], 1),
        debiased_ms=round(medians["debiased"], 1),
        guidance_ms=round(medians["guidance"], 1),
        debiased_to_plain=round(medians["debiased"] / medians["plain"], 3),
        debiased_to_guidance=round(medians["debiased"] / medians["guidance"], 3),
        transformers_plain_ms=round(medians["transformers_plain"], 1),
        same_tokens=sum(equal) / batch,
    )


def _engines(
    model: Any, originals: list[list[int]], imagined: list[list[int]], new_tokens: int, compiled: bool
) -> dict[str, Callable[[], list[list[int]]]]:
    def ours(alpha: float) -> list[list[int]]:
        decoding = DecodingConfig(alpha=alpha, max_new_tokens=new_tokens, compiled=compiled)
        return generate_debiased(model, originals, imagined, decoding, stop_ids=())

    def transformers(**options: Any) -> list[list[int]]:
        ids = torch.tensor(originals, device=model.device)
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
        ids = torch.tensor(imagined, device=model.device)
        negative = {"negative_prompt_ids": ids, "negative_prompt_attention_mask": torch.ones_like(ids)}
        return transformers(guidance_scale=1 / (1 - ALPHA), **negative)

    return {
        "plain": partial(ours, 0.0),
        "debiased": partial(ours, ALPHA),
        "guidance": guidance,
        "transformers_plain": transformers,
    }


def as_table(measured: Sequence[Measured]) -> Table:
    """The rows as a table."""
    columns = (
        "prompt", "batch", "new", "plain ms", "debiased ms", "guidance ms", "debiased / plain",
        "debiased / guidance", "transformers' plain ms", "same tokens as guidance",
    )  # fmt: skip
    lines = [
        [
            str(row.prompt), str(row.batch), str(row.new_tokens), f"{row.plain_ms:,.0f}", f"{row.debiased_ms:,.0f}",
            f"{row.guidance_ms:,.0f}", f"{row.debiased_to_plain:.2f}", f"{row.debiased_to_guidance:.2f}",
            f"{row.transformers_plain_ms:,.0f}", f"{100 * row.same_tokens:.0f} %",
        ]
        for row in measured
    ]  # fmt: skip
    return Table.of(columns, lines, keys=3)
