"""`d2e bench train`: what a D²E step costs compared with plain SFT, engine by engine.

A timed step is collation, forward and backward of one micro-batch, without the optimiser. All losses must be equal.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity
from torch.profiler import profile as profiler

from d2e_sft.bench import peers
from d2e_sft.bench.harness import Measurement, Row, in_turns, open_model
from d2e_sft.config.objectives import View, ViewGradients
from d2e_sft.config.recipe import D2ESection, Precision
from d2e_sft.model import collation
from d2e_sft.model.collation import IGNORE, Collator, model_inputs
from d2e_sft.model.device import PeakMemory, autocast, without_cudnn_attention
from d2e_sft.model.forward import hidden_states
from d2e_sft.model.packing_support import Layout, choose_layout, collator_for
from d2e_sft.model.shapes import Work
from d2e_sft.objective.attach import chunked_head, objective_of
from d2e_sft.objective.attach import step as objective_step
from d2e_sft.objective.chunks import sum_in_chunks
from d2e_sft.objective.objectives import AnswerTokens
from d2e_sft.util.errors import UserError, did_you_mean
from d2e_sft.util.terminal import say

SFT = D2ESection(debias=False, distill=False)
PREFER = D2ESection(objective="prefer", sft_weight=0)
PREFIX, QUESTION, ANSWER, REFINED_SHARE = 130, 30, 10, 0.4
Rows = Sequence[collation.Row]
Packing = Literal["batched", "shared_prefix", "shared_batch"]
Step = Callable[[], Tensor]


@dataclass(frozen=True, eq=False)
class StepEngine:
    """One way to compute a step's loss, which is summed over the answer tokens.

    Attributes:
        baseline: The SFT engine that shares the same prefixes.
        make: Makes the step of a model, rows and settings (`d2e` when it is measured); it does not count.
        layout: None: rows of one view each, without a collator that lays them out.
        is_peer: It belongs to another library, and is measured with both groups of engines.
    """

    name: str
    baseline: str
    make: Callable[[Any, Rows, D2ESection], Step]
    layout: Packing | None = None
    is_sft: bool = False
    is_peer: bool = False
    d2e: D2ESection = field(default_factory=lambda: SFT)

    @property
    def packed(self) -> bool:
        """Whether the views of a sample share a row."""
        return self.layout in ("shared_prefix", "shared_batch")

    @property
    def shares_samples(self) -> bool:
        """Whether samples share their prefix, so that the cost per sample depends on their number."""
        return self.layout == "shared_batch"

    def work(self, rows: Rows, d2e: D2ESection) -> Work:
        """Return the work of a step on these rows; padding counts as tokens."""
        if self.layout is not None:
            return Work.of_batch(collator_for(Layout(self.layout, ""), d2e, None)(rows), d2e.view_gradients)
        if d2e.prefers:
            rows = [*rows, *({**row, "answer": row["rejected"]} for row in rows)]
        if self.is_peer:  # one row each, and logits at every position
            widths = [len(row["original"]) + len(row["answer"]) for row in rows]
            tokens = len(rows) * max(widths)
            return Work(tokens, tokens, len(rows) * (max(widths) * (max(widths) + 1) // 2))
        parts = [Work.of_batch(Collator("batched", [view])(rows)) for view in d2e.views]
        trained, untrained = (parts, []) if d2e.view_gradients == "all" else (parts[:1], parts[1:])
        return Work(
            sum(part.tokens for part in trained),
            sum(part.positions for part in trained),
            sum(part.pairs for part in trained),
            sum(part.tokens for part in untrained),
            sum(part.pairs for part in untrained),
        )


def synthetic_rows(
    samples: int, context: int, vocabulary: int, seed: int = 0, *, unrefined: int = 0
) -> list[collation.Row]:
    """Make samples of random tokens: a shared prefix, and a context, a question and an answer of fixed lengths.

    The refined view of the first `unrefined` samples is the original one.
    """
    source = random.Random(seed)

    def some(count: int) -> list[int]:
        return [source.randrange(vocabulary) for _ in range(count)]

    prefix, rows = some(PREFIX), []
    for _ in range(samples):
        question = some(QUESTION)
        rows.append(
            {
                "original": [*prefix, *some(context), *question],
                "imagined": [*prefix, *question],
                "refined": [*prefix, *some(round(REFINED_SHARE * context)), *question],
                "answer": some(ANSWER),
            }
        )
    return [*({**row, "refined": row["original"]} for row in rows[:unrefined]), *rows[unrefined:]]


def synthetic_pairs(rows: Rows, vocabulary: int, seed: int = 0) -> list[collation.Row]:
    """Return the rows with a rejected answer of random tokens, and log-probabilities as if by a reference."""
    source = random.Random(seed)
    of_reference = [-math.log(vocabulary) * ANSWER, -1.1 * math.log(vocabulary) * ANSWER]
    return [
        {**row, "rejected": [source.randrange(vocabulary) for _ in range(ANSWER)], "reference": of_reference}
        for row in rows
    ]


def _plain_sft(model: Any, rows: Rows, d2e: D2ESection) -> Step:
    """Compute what transformers' Trainer does: a row per sample, logits and loss at every position."""

    def step() -> Tensor:
        ids = torch.tensor([[*row["original"], *row["answer"]] for row in rows], device=model.device)
        labels = ids.clone()
        for line, row in zip(labels, rows, strict=True):
            line[: len(row["original"])] = IGNORE
        loss: Tensor = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels, use_cache=False).loss
        return loss * sum(len(row["answer"]) for row in rows)

    return step


def _three_forwards(model: Any, rows: Rows, d2e: D2ESection) -> Step:
    def step() -> Tensor:
        states: dict[View, Tensor] = {}
        for view in d2e.views:
            inputs = model_inputs(Collator("batched", [view])(rows), model.device)
            index, targets = inputs.pop("answer_index")[0], inputs.pop("targets")
            with nullcontext() if view == "original" or d2e.view_gradients == "all" else torch.no_grad():
                states[view] = hidden_states(model, **inputs).flatten(0, 1)[index]
        tokens = AnswerTokens(targets, torch.ones_like(targets, dtype=torch.bool))
        return sum_in_chunks(objective_of(model, d2e), chunked_head(model, targets), states, tokens)["loss"]

    return step


def _ours(name: str, baseline: str, layout: Packing, *, is_sft: bool = False) -> StepEngine:
    def make(model: Any, rows: Rows, d2e: D2ESection) -> Step:
        def step() -> Tensor:
            inputs = model_inputs(collator_for(Layout(layout, ""), d2e, model.config)(rows), model.device)
            return objective_step(objective_of(model, d2e), model, inputs.pop("targets"), inputs)["loss"]

        return step

    return StepEngine(name, baseline, make, layout, is_sft)


ENGINES = (
    StepEngine("sft_plain", "sft_plain", _plain_sft, is_sft=True, is_peer=True),
    _ours("sft", "sft", "shared_prefix", is_sft=True),
    _ours("sft_shared", "sft_shared", "shared_batch", is_sft=True),
    StepEngine("three_forwards", "sft", _three_forwards),
    _ours("batched", "sft", "batched"),
    _ours("shared_prefix", "sft", "shared_prefix"),
    _ours("shared_batch", "sft_shared", "shared_batch"),
)
# For the loss of DPO, with SFT on the gold answers as the baseline.
PREFERENCE_ENGINES = tuple(engine for engine in ENGINES if engine.name != "three_forwards")


def trl_engines(precision: Precision, *, prefers: bool = False) -> tuple[StepEngine, ...]:
    """Return the engines of TRL's SFT without and with packing, or of its DPO; UserError if it is not installed."""
    missing = peers.trl_is_missing()
    if missing is not None:
        raise UserError(f"TRL's trainers cannot be measured: {missing}", "pip install 'd2e-sft[bench]'")
    if prefers:

        def dpo(model: Any, rows: Rows, d2e: D2ESection) -> Step:
            form, beta, weight = d2e.prefer_form, d2e.beta, d2e.sft_weight
            return peers.trl_dpo_step(model, rows, precision, form=form, beta=beta, sft_weight=weight)

        return (StepEngine("trl", "sft_plain", dpo, is_peer=True),)

    def sft(model: Any, rows: Rows, d2e: D2ESection, *, packing: bool) -> Step:
        return peers.trl_sft_step(model, rows, precision, packing=packing)

    return tuple(
        StepEngine(name, "sft_plain", partial(sft, packing=packing), is_sft=True, is_peer=True)
        for name, packing in (("trl", False), ("trl_packed", True))
    )


def engines_of(precision: Precision, *, trl: bool, prefers: bool, only: Sequence[str] = ()) -> list[StepEngine]:
    """Return the engines of an objective, or those of these names and their baselines."""
    engines = [*(PREFERENCE_ENGINES if prefers else ENGINES)]
    engines += trl_engines(precision, prefers=prefers) if trl else ()
    by_name = {engine.name: engine for engine in engines}
    for name in only:
        if name not in by_name:
            raise UserError(
                f"--engines {name}: expected names among {', '.join(by_name)}.{did_you_mean(name, by_name)}",
                "see d2e bench train --help; trl and trl_packed need --trl",
            )
    names = {*only, *(by_name[name].baseline for name in only)} or by_name.keys()
    return [engine for engine in engines if engine.name in names]


@dataclass(frozen=True)
class StepBench:
    """What all steps of a measurement share; `attention` is that of packed rows."""

    model: Any
    attention: str
    precision: Precision
    memory: PeakMemory

    @classmethod
    def of(cls, name: str, precision: Precision, device: torch.device | None = None) -> StepBench:
        """Load a model to train; memory counts its weights. UserError if it cannot be packed."""
        memory = PeakMemory(device)
        model = open_model(name, memory.device)
        layout = choose_layout(model, D2ESection(), "shared_batch")
        return cls(model.to(memory.device).train(), layout.attention, precision, memory)

    @property
    def vocabulary(self) -> int:
        return int(self.model.config.get_text_config().vocab_size)

    def measure(
        self, engines: Sequence[StepEngine], rows: Rows, repeats: int
    ) -> Iterator[dict[StepEngine, Measurement]]:
        """Run a step of each engine in turns, first for their memory; yields the measurements so far."""
        steps = {engine: self.step(engine, rows) for engine in engines}

        def memory() -> PeakMemory:
            self.memory.reset()
            return self.memory

        turns = in_turns(steps, repeats, self.model.device, prepare=self.prepare, memory=memory)
        for turn, measured in enumerate(turns):
            if turn == 0:
                self._check_same_losses(measured)
            yield measured

    def prepare(self, engine: StepEngine) -> None:
        """Set the attention of an engine, without gradients of an earlier step."""
        self.model.set_attn_implementation(self.attention if engine.packed else "sdpa")
        self.model.zero_grad(set_to_none=True)

    def step(self, engine: StepEngine, rows: Rows) -> Callable[[], float]:
        """Return an engine's forward and backward, which returns the loss."""
        loss_of = engine.make(self.model, rows, engine.d2e)
        scaler = torch.amp.GradScaler(self.model.device.type, enabled=self.precision == "float16")

        def step() -> float:
            with autocast(self.precision, self.model.device), without_cudnn_attention():
                loss = loss_of()
            scaler.scale(loss).backward()
            return loss.item()

        return step

    def _check_same_losses(self, measured: Mapping[StepEngine, Measurement]) -> None:
        """Reject engines that compute different losses: a fast wrong one would win."""
        tolerance = 1e-4 if self.precision == "float32" else 2e-2
        for is_sft in (True, False):
            losses = [measurement.result for engine, measurement in measured.items() if engine.is_sft == is_sft]
            highest = max(losses, default=0)
            if not highest - min(losses, default=0) <= tolerance * abs(highest):  # NaN fails this, too
                named = {
                    (engine.name, engine.d2e.view_gradients): measurement.result
                    for engine, measurement in measured.items()
                }
                raise UserError(f"the engines disagree on the loss: {named}", "report it with this line")


def bench_training(
    model: str,
    *,
    contexts: Sequence[int],
    samples: int,
    unshared_samples: int,
    repeats: int,
    precision: Precision,
    trl: bool = False,
    objective: Literal["d2e", "prefer"] = "d2e",
    engines: Sequence[str] = (),
    profile: bool = False,
    unrefined: float = 0.0,
    device: torch.device | None = None,
) -> list[Row]:
    """Measure every engine at every context length; returns a row for each, see `step_rows`.

    The engines that share no prefix between samples have `unshared_samples`: their cost per sample does not depend on
    the number. The refined view of a share `unrefined` of the samples is the original one.
    """
    prefers = objective == "prefer"
    sections = [PREFER] if prefers else [D2ESection(view_gradients=gradients) for gradients in get_args(ViewGradients)]
    chosen = [
        replace(engine, d2e=d2e)
        for engine in engines_of(precision, trl=trl, prefers=prefers, only=engines)
        for d2e in ([SFT] if engine.is_sft else sections)
    ]
    bench = StepBench.of(model, precision, device)
    result: list[Row] = []
    for context in contexts:
        for shared, count in ((True, samples), (False, unshared_samples)):
            of_group = [engine for engine in chosen if engine.is_peer or engine.shares_samples == shared]
            if not count or all(engine.is_peer for engine in of_group):
                continue
            rows = synthetic_rows(count, context, bench.vocabulary, unrefined=round(unrefined * count))
            rows = synthetic_pairs(rows, bench.vocabulary) if prefers else rows
            for turn, measured in enumerate(bench.measure(of_group, rows, repeats)):  # noqa: B007 (the last is used)
                say(f"context {context}, {count} samples: {turn} of {repeats}", err=True)
            for engine in of_group if profile else ():
                bench.prepare(engine)
                say(f"{engine.name}, context {context}\n{profiled(bench.step(engine, rows), bench.memory.device)}")
            result += step_rows(bench.model, measured, rows, context)
    return result


def profiled(step: Callable[[], object], device: torch.device) -> str:
    """Run a step once under torch's profiler; returns its table of the operations that took most time."""
    activities, by = [ProfilerActivity.CPU], "self_cpu_time_total"
    if device.type == "cuda":
        activities, by = [*activities, ProfilerActivity.CUDA], "self_device_time_total"
    with profiler(activities=activities) as recorded:
        step()
    return str(recorded.key_averages().table(sort_by=by, row_limit=20, max_name_column_width=40))


def step_rows(model: Any, measured: Mapping[StepEngine, Measurement], rows: Rows, context: int) -> list[Row]:
    """Return a row for each engine, with ratios to its baselines that were measured.

    `tokens` are those with gradient, one without counts as a third, as a backward is two forwards; `floor_ratio` is
    their ratio to the SFT engine that shares as many prefixes, and `to_sft` that of time. `tokens_per_s` counts all
    views in full, as logged in training. `half_spread_ms` is half of the slowest minus the fastest step. FLOPs are the
    model's, see `Work.flops`.
    """
    by_name = {engine.name: measurement for engine, measurement in measured.items()}
    everything = {engine: engine.d2e.model_copy(update={"view_gradients": "all"}) for engine in measured}
    whole = {engine.name: _tokens(engine.work(rows, d2e)) for engine, d2e in everything.items()}
    result: list[Row] = []
    for engine, measurement in measured.items():
        d2e, seconds, clock = engine.d2e, measurement.cost.clock_s, [cost.clock_s for cost in measurement.costs]
        work, floor = engine.work(rows, d2e), whole.get(engine.baseline)
        bases = {"sft": engine.baseline, "sft_plain": "sft_plain", "trl": "trl"}
        answers = ("answer", "rejected") if d2e.prefers else ("answer",)
        view_tokens = sum(
            len(row[view]) + len(row[name]) - 1 for row in rows for view in d2e.views for name in answers
        )
        facts = {
            "variant": engine.name,
            "view_gradients": d2e.view_gradients,
            "context": context,
            "samples": len(rows),
            "unrefined": sum(row["refined"] == row["original"] for row in rows) or None,
            "tokens": round(whole[engine.name]),
            "floor_ratio": None if floor is None else round(_tokens(work) / floor, 3),
            "half_spread_ms": round(500 * (max(clock) - min(clock)), 1),
            "tokens_per_s": round(view_tokens / seconds, 1),
            "tflops_per_s": round(work.flops(model) / seconds / 1e12, 3),
        }
        result.append(measurement.row({name: by_name.get(base) for name, base in bases.items()}, **facts))
    return result


def _tokens(work: Work) -> float:
    return work.tokens + work.tokens_without_gradient / 3
