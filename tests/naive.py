"""The objective the naive way, one forward a view and sample, and what is compared with it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from d2e_sft.config.recipe import D2ESection, Packing
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.views import ViewEncoder, encode_samples
from d2e_sft.model.collation import IGNORE
from d2e_sft.model.packing_support import Layout, choose_layout, collator_for
from d2e_sft.objective.attach import attach_objective
from d2e_sft.objective.loss import d2e_loss
from tests.tiny import make_samples, tiny_tokenizer

SUMS = ("loss", "ce", "kl", "correct", "plain_correct", "imagined_correct")


def encoded_rows(config: D2ESection, count: int = 4) -> list[dict[str, Any]]:
    """Dataset rows of `count` samples, encoded for the objective's views."""
    encoder = ViewEncoder(tiny_tokenizer(), load_prompt_set("default"), config.views)
    encoded = encode_samples(make_samples(count), encoder, max_length=1000)
    return [{**item.prompts, "answer": item.answer} for item in encoded.kept]


def naive_sums(model: Any, rows: Sequence[dict[str, list[int]]], config: D2ESection) -> list[torch.Tensor]:
    """`SUMS`, one sample and one view at a time, unpadded, from whole logits."""
    totals = [torch.zeros(()) for _ in SUMS]
    for row in rows:
        answer = torch.tensor(row["answer"])
        logits = {}
        for view in config.views:
            if model.config.is_encoder_decoder:
                decoder = torch.tensor([[model.config.decoder_start_token_id, *row["answer"][:-1]]])
                logits[view] = model(input_ids=torch.tensor([row[view]]), decoder_input_ids=decoder).logits[0]
            else:
                ids = torch.tensor([row[view] + row["answer"]])
                logits[view] = model(input_ids=ids).logits[0, -len(answer) - 1 : -1]
            if view != "original" and config.view_gradients == "original":
                logits[view] = logits[view].detach()
        loss = d2e_loss(
            logits["original"],
            answer,
            imagined=logits.get("imagined"),
            refined=logits.get("refined"),
            alpha=config.effective_alpha,
            kl_weight=config.kl_weight,
            kl_direction=config.kl_direction,
        )
        parts = (loss.loss, loss.ce, loss.kl, loss.correct, loss.plain_correct, loss.imagined_correct)
        totals = [total + part for total, part in zip(totals, parts, strict=True)]
    return totals


def gradients_of(model: Any) -> dict[str, torch.Tensor]:
    """The gradients that a backward left, by parameter name."""
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def sums_of(model: Any, rows: Sequence[dict[str, Any]], config: D2ESection, layout: Layout) -> dict[str, torch.Tensor]:
    """What the model's forward gives for one batch of a layout, with the objective attached."""
    batch = collator_for(layout, config, model.config)(rows)
    labels = batch.pop("labels")
    batch.pop("view_tokens")
    sums: dict[str, torch.Tensor] = model(**batch, targets=labels[labels != IGNORE])
    return sums


def assert_equal_to_naive(model: Any, config: D2ESection, packing: Packing, attention: str | None = None) -> Layout:
    """In the model's dtype: the parts to 1e-6 of the loss, each parameter's gradient to 1e-5 of its norm."""
    rows = encoded_rows(config)
    reference = copy.deepcopy(model)
    expected = naive_sums(reference, rows, config)
    expected[0].backward()
    layout = choose_layout(model, config, packing, attention)
    attach_objective(model, config, through_logits=layout.through_logits)
    sums = sums_of(model, rows, config, layout)
    sums["loss"].backward()
    for name, value in zip(SUMS, expected, strict=True):
        assert sums[name].item() == pytest.approx(value.item(), abs=1e-6 * expected[0].item()), name
    ours, theirs = gradients_of(model), gradients_of(reference)
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        # k_proj.bias of Qwen2 and the like: mathematically zero, so there is nothing to be relative to.
        if gradient.norm() > 1e-4:
            assert (ours[name] - gradient).norm() <= 1e-5 * gradient.norm(), name
    return layout
