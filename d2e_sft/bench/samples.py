"""`d2e bench samples`: a file of samples decoded in batches and with refill, with torch's linear layers and oneDNN's.

The ways take turns. On a CPU times are of the processor, so that other work on the machine counts less.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import torch

from d2e_sft.bench.cost import median, share_of_equals, take_turns
from d2e_sft.bench.step_rows import fields_table
from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import EventSample
from d2e_sft.data.views import ViewEncoder
from d2e_sft.decoding.generation import generate
from d2e_sft.decoding.pairs import TokenPair
from d2e_sft.decoding.samples import sample_pairs
from d2e_sft.decoding.stops import stop_token_ids
from d2e_sft.model.loading import load_model
from d2e_sft.model.onednn import ready_to_decode
from d2e_sft.util.table import Table

# way → whether weights are reordered, and the batch size; the first is what the others are compared with
WAYS: Mapping[str, tuple[bool, int | None]] = {
    "batches of 16, torch's layers": (False, 16),
    "batches of 16": (True, 16),
    "refilled": (True, None),
}


@dataclass(frozen=True)
class Measured:
    """The processor's seconds of one way and those of the clock, as medians, and what follows from them.

    Rates are per second of the processor, on a GPU of the clock. `to_first` is how many times as many samples a second
    as the first way, the median over the repeats. `same` is the share of answers that equal the first way's token for
    token.
    """

    way: str
    samples: int
    cpu_s: float
    clock_s: float
    samples_per_s: float
    tokens_per_s: float
    to_first: float
    same: float


def bench_samples(
    name: str, rows: Sequence[EventSample], decoding: DecodingConfig, repeats: int, progress: Callable[[str], object]
) -> list[Measured]:
    """Decode the samples in every way; UserError if the model cannot be loaded."""
    loaded = load_model(name)
    models = {False: loaded.model.eval(), True: ready_to_decode(load_model(name).model, "cpu")}
    encoder = ViewEncoder(loaded.tokenizer, load_prompt_set("default"), ("original", "imagined"))
    pairs, stop_ids = sample_pairs(encoder, rows), stop_token_ids(models[False], encoder.end_of_turn)

    def decode(way: str, reordered: bool, batch_size: int | None) -> list[list[int]]:
        progress(way)
        return generate(models[reordered], pairs, replace(decoding, batch_size=batch_size), stop_ids=stop_ids)

    ways = {way: partial(decode, way, *how) for way, how in WAYS.items()}
    return compare_ways(ways, pairs, repeats, models[True].device)


def compare_ways(
    ways: Mapping[str, Callable[[], list[list[int]]]], pairs: Sequence[TokenPair], repeats: int, device: torch.device
) -> list[Measured]:
    """Run the ways in turns; each returns the answers' tokens. `pairs` are the prompts of all samples."""
    on_cpu, first = device.type == "cpu", next(iter(ways))
    costs, answers = take_turns(ways, repeats, device, warm_up=not on_cpu)
    seconds = {way: [cost.cpu_s if on_cpu else cost.clock_s for cost in own] for way, own in costs.items()}
    prompts = sum(len(pair.original) + len(pair.imagined or ()) for pair in pairs)
    measured = []
    for way, found in answers.items():
        cost, per_s = median(costs[way]), 1 / statistics.median(seconds[way])
        row = Measured(
            way,
            len(found),
            round(cost.cpu_s, 2),
            round(cost.clock_s, 3),
            round(len(found) * per_s, 3),
            round((prompts + len([*chain(*found)])) * per_s, 1),
            round(statistics.median(one / own for one, own in zip(seconds[first], seconds[way], strict=True)), 3),
            share_of_equals(found, answers[first]),
        )
        measured.append(row)
    return measured


_COLUMNS = {
    "way": ("way", "{}"),
    "samples": ("samples", "{:,}"),
    "CPU s": ("cpu_s", "{:,.1f}"),
    "samples / s": ("samples_per_s", "{:.2f}"),
    "tokens / s": ("tokens_per_s", "{:,.0f}"),
    "× first": ("to_first", "{:.2f}"),
    "same answers": ("same", "{:.1%}"),
}


def as_table(measured: Sequence[Measured]) -> Table:
    """Return the rows as a table."""
    return fields_table(_COLUMNS, [vars(row) for row in measured])
