"""The engines that `d2e bench train` compares: each computes the loss of one training step."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from d2e_sft.config.objectives import BASE, View, ViewGradients
from d2e_sft.config.recipe import D2ESection
from d2e_sft.model.collation import IGNORE, BatchedCollator, Row
from d2e_sft.model.forward import hidden_states
from d2e_sft.model.micro_batch import model_inputs
from d2e_sft.model.packing_support import Layout, collator_for
from d2e_sft.objective.attach import chunked_head, objective_of, step
from d2e_sft.objective.bias_model import BiasModel, FrozenCollator, numbered
from d2e_sft.objective.chunks import sum_in_chunks
from d2e_sft.objective.terms import AnswerTokens

SFT = D2ESection(debias=False, distill=False)
PREFER = D2ESection(objective="prefer", sft_weight=0)
BIAS = D2ESection(bias_model=BASE)
PREFIX, QUESTION, ANSWER, REFINED_SHARE = 130, 30, 10, 0.4


@dataclass(frozen=True)
class Engine:
    """One way to compute a step.

    Attributes:
        baseline: The SFT engine that shares the same prefixes.
        shares_samples: Samples share their prefix, so the cost per sample depends on their number.
        elsewhere: The engine belongs to another library and is measured with both groups of engines.
        computes_all: Computes a view that equals another one of its sample, too.
        prefers: The loss is that of DPO, with the reference's log-probabilities in the rows.
        has_bias_model: The imagined view is that of a bias model, computed before the timed steps.
        prepare: Runs before the timed steps.
    """

    name: str
    baseline: str
    shares_samples: bool
    loss: Callable[[Any, Sequence[Row], D2ESection], Tensor]
    packed: bool
    is_sft: bool = False
    elsewhere: bool = False
    computes_all: bool = False
    prefers: bool = False
    has_bias_model: bool = False
    prepare: Callable[[Any, Sequence[Row]], None] | None = None


def synthetic_rows(samples: int, context: int, vocabulary: int, seed: int = 0, *, unrefined: int = 0) -> list[Row]:
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


def synthetic_pairs(rows: Sequence[Row], vocabulary: int, seed: int = 0) -> list[Row]:
    """Return the rows with a rejected answer of random tokens, and log-probabilities as if by a reference."""
    source = random.Random(seed)
    of_reference = [-math.log(vocabulary) * ANSWER, -1.1 * math.log(vocabulary) * ANSWER]
    return [
        {**row, "rejected": [source.randrange(vocabulary) for _ in range(ANSWER)], "reference": of_reference}
        for row in rows
    ]


def token_floor(
    engine: Engine, samples: int, context: int, view_gradients: ViewGradients, *, unrefined: int = 0
) -> float:
    """Return a step's least work in tokens with gradient; one without is a third, as a backward is two forwards."""
    weight, others = 1 if view_gradients == "all" else 1 / 3, 0
    own: float = samples * (context + QUESTION + ANSWER)
    if engine.prefers:
        others = samples  # branches of an answer
        own += samples * ANSWER
        if not engine.packed:
            own += samples * (context + QUESTION)
    elif not engine.is_sft:
        kept, again = samples - unrefined, unrefined if engine.computes_all else 0
        others = (0 if engine.has_bias_model else samples) + kept + again  # views in addition to the original ones
        own += weight * (others * (QUESTION + ANSWER) + kept * round(REFINED_SHARE * context) + again * context)
    if engine.packed or engine.is_sft:
        return (1 if engine.shares_samples else samples) * PREFIX + own
    return own + PREFIX * (samples + weight * others)  # each view has a prefix


def _plain_sft(model: Any, rows: Sequence[Row], d2e: D2ESection) -> Tensor:
    """Compute what transformers' Trainer does: a row per sample, logits and loss at every position."""
    ids = torch.tensor([[*row["original"], *row["answer"]] for row in rows], device=model.device)
    labels = ids.clone()
    for line, row in zip(labels, rows, strict=True):
        line[: len(row["original"])] = IGNORE
    loss: Tensor = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels, use_cache=False).loss
    return loss * sum(len(row["answer"]) for row in rows)


def _three_forwards(model: Any, rows: Sequence[Row], d2e: D2ESection) -> Tensor:
    """Run one forward per view, with a row per sample."""
    states: dict[View, Tensor] = {}
    for view in d2e.views:
        inputs = model_inputs(BatchedCollator([view], 0)(rows), model.device)
        index, targets = inputs.pop("answer_index")[0], inputs.pop("targets")
        inputs.pop("answers")
        with nullcontext() if view == "original" or d2e.view_gradients == "all" else torch.no_grad():
            states[view] = hidden_states(model, **inputs).flatten(0, 1)[index]
    tokens = AnswerTokens(targets, torch.ones_like(targets, dtype=torch.bool))
    return sum_in_chunks(objective_of(model, d2e), chunked_head(model, targets), states, tokens)["loss"]


def _collated(
    model: Any, rows: Sequence[Row], d2e: D2ESection, packing: Literal["batched", "shared_prefix", "shared_batch"]
) -> Tensor:
    """Run the trainer's own step, with collation."""
    inputs = model_inputs(collator_for(Layout(packing, attention=""), d2e, model.config)(rows), model.device)
    return step(model, objective_of(model, d2e), inputs.pop("targets"), inputs)["loss"]


class _BiasLoss:
    """The step with a bias model: the model itself, as it was before the first step."""

    def prepare(self, model: Any, rows: Sequence[Row]) -> None:
        """Compute the hidden states of the imagined view and copy the head, which is not timed."""
        layout = Layout("shared_batch", attention="")
        bias = BiasModel.of(BIAS, model, layout)
        self._collate = FrozenCollator(collator_for(layout, BIAS, model.config), bias.states(BIAS, rows))
        self._objective = objective_of(model, BIAS, bias.head)

    def __call__(self, model: Any, rows: Sequence[Row], d2e: D2ESection) -> Tensor:
        inputs = model_inputs(self._collate(numbered(rows)), model.device)
        return step(model, self._objective, inputs.pop("targets"), inputs)["loss"]


def bias_engine() -> Engine:
    """Return the engine of a step with a bias model; its loss is that of D²E until the model is trained."""
    loss = _BiasLoss()
    return Engine(
        "bias_model", "sft_shared", shares_samples=True, loss=loss, packed=True, has_bias_model=True,
        prepare=loss.prepare,
    )  # fmt: skip


_shared_prefix = partial(_collated, packing="shared_prefix")
_shared_batch = partial(_collated, packing="shared_batch")
ENGINES = (
    Engine("sft_plain", "sft_plain", shares_samples=False, loss=_plain_sft, packed=False, is_sft=True, elsewhere=True),
    Engine("sft", "sft", shares_samples=False, loss=_shared_prefix, packed=True, is_sft=True),
    Engine("sft_shared", "sft_shared", shares_samples=True, loss=_shared_batch, packed=True, is_sft=True),
    Engine("three_forwards", "sft", shares_samples=False, loss=_three_forwards, packed=False, computes_all=True),
    Engine("batched", "sft", shares_samples=False, loss=partial(_collated, packing="batched"), packed=False),
    Engine("shared_prefix", "sft", shares_samples=False, loss=_shared_prefix, packed=True),
    Engine("shared_batch", "sft_shared", shares_samples=True, loss=_shared_batch, packed=True),
)
# The loss of DPO, with SFT on the gold answers as the baseline.
PREFERENCE_ENGINES = (
    *(engine for engine in ENGINES if engine.is_sft),
    *(
        replace(engine, prefers=True)
        for engine in ENGINES
        if engine.name in ("batched", "shared_prefix", "shared_batch")
    ),
)
