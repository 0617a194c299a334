"""The objective the naive way, one forward a view and sample, and what is compared with it."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from d2e_sft.config.recipe import D2ESection, Packing
from d2e_sft.data.chat_template import FormatPrompt
from d2e_sft.data.prompts import PromptSet
from d2e_sft.data.views import ViewEncoder
from d2e_sft.model.micro_batch import model_inputs
from d2e_sft.model.packing_support import Layout, choose_layout, collator_for
from d2e_sft.objective.attach import attach_objective
from d2e_sft.train.encoding import encode_samples
from tests.tiny import make_samples, tiny_model, tiny_tokenizer

SURER = 16.0  # how much larger the logits of `sure_model` are
# Every objective with its options; `test_attach` and `test_chunks` compare each with its formula.
CONFIGS = {
    "d2e": D2ESection(),
    "original-gradient": D2ESection(view_gradients="original"),
    "other-kl": D2ESection(kl_direction="refined_original", kl_weight=0.3, alpha=1.2),
    "no-debias": D2ESection(debias=False),
    "no-debias-original-gradient": D2ESection(debias=False, view_gradients="original"),
    "no-distill": D2ESection(distill=False),
    "sft": D2ESection(debias=False, distill=False),
    "named-sft": D2ESection(objective="sft"),
    "product": D2ESection(objective="product"),
    "weak-product": D2ESection(objective="product", product_weight=0.3),
    "product-of-trained": D2ESection(objective="product", imagined_weight=0.3),
    "reweight": D2ESection(objective="reweight"),
    "reweight-all-gradients": D2ESection(objective="reweight", view_gradients="all"),
    "honest": D2ESection(objective="honest"),
    "teacher": D2ESection(objective="teacher", kl_weight=0.3),
    "debiased-teacher": D2ESection(objective="teacher", debias=True),
    "honest-teacher": D2ESection(objective="honest-teacher", alpha=1.2),
    "weighted": D2ESection(objective="weighted"),
    "weighted-jsd": D2ESection(objective="weighted", alpha_weight="jsd", kl_direction="refined_original"),
    "weighted-original-gradient": D2ESection(objective="weighted", view_gradients="original"),
}

# Shorter than the default one, so that steps are quick; its prompts are longer than the windows of attention.
SHORT = PromptSet(
    name="short",
    zero_shot={
        "qa": FormatPrompt(
            system="Answer.",
            context="Context: {context}\n",
            user="{context_block}Question: {question}",
            response="The answer is: {answer}",
        )
    },
)


def encoded_rows(config: D2ESection, count: int = 4, wording: PromptSet = SHORT) -> list[dict[str, Any]]:
    """Dataset rows of `count` samples, encoded for the objective's views."""
    encoder = ViewEncoder(tiny_tokenizer(), wording, config.views)
    encoded = encode_samples(make_samples(count), encoder, max_length=1000)
    return [{**item.prompts, "answer": item.answer, "content": item.content} for item in encoded.kept]


@torch.no_grad()
def guessed(rows: Sequence[dict[str, Any]], model: Any) -> list[dict[str, Any]]:
    """The rows with the answers that the model guesses without the context, and every third one with another token."""
    found = []
    for number, row in enumerate(rows):
        ids, length = list(row["imagined"]), 3 + number % 3
        for _ in range(length):
            ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
        answer = ids[len(row["imagined"]) :]
        answer[1] = answer[1] + 1 if number % 3 == 2 else answer[1]
        found.append({**row, "answer": answer, "content": [0 < i < 3 for i in range(length)]})
    return found


def sure_model(seed: int = 3) -> Any:
    """A tiny model whose guesses have much of the probability."""
    model = tiny_model(seed=seed)
    with torch.no_grad():
        model.lm_head.weight.mul_(SURER)
    return model


def with_equal_views(rows: Sequence[dict[str, Any]], unrefined: Sequence[int], bare: Sequence[int] = ()) -> Any:
    """The rows; the refined view of some is the original, and some have no context: all their views are equal."""
    views = {"original", "imagined", "refined"}
    copied = [dict.fromkeys(views & row.keys(), row["original"]) for row in rows]
    return [
        row | (copied[i] if i in bare else {"refined": row["original"]} if i in unrefined and "refined" in row else {})
        for i, row in enumerate(rows)
    ]


def naive_terms(
    logits: dict[str, torch.Tensor], targets: torch.Tensor, content: torch.Tensor, config: D2ESection
) -> dict[str, torch.Tensor]:
    """Each term of an objective over the tokens (n,) of an answer, from whole logits (n, V), as its formula has it.

    Written without the package's functions, one token at a time.
    """
    terms: dict[str, torch.Tensor] = {}
    for i, target in enumerate(targets):
        at = {view: of_view[i] for view, of_view in logits.items()}
        for name, value in _token_terms(at, int(target), bool(content[i]), config).items():
            terms[name] = terms.get(name, torch.zeros((), dtype=value.dtype)) + value
    weight = answer_weight(logits, targets, content, config)
    return {name: term if weight is None else weight * term for name, term in terms.items()}


def answer_weight(logits: Any, targets: torch.Tensor, content: torch.Tensor, config: D2ESection) -> float | None:
    """What an answer's loss is multiplied by: one minus its probability by the imagined view, form tokens left out."""
    if config.objective != "reweight":
        return None
    probability = 1.0
    for at, target, is_content in zip(logits["imagined"], targets.tolist(), content.tolist(), strict=True):
        probability *= at.softmax(0)[target].item() if is_content else 1.0
    return 1.0 - probability


def _token_terms(
    at: dict[str, torch.Tensor], target: int, is_content: bool, config: D2ESection
) -> dict[str, torch.Tensor]:
    original, imagined, refined = (at.get(view) for view in ("original", "imagined", "refined"))
    assert original is not None
    name, p = config.objective, {view: z.softmax(0) for view, z in at.items()}

    def ce(z: torch.Tensor) -> torch.Tensor:
        return -z.softmax(0)[target].log()

    def kl(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        a, b = one.softmax(0), other.softmax(0)
        return (a * (a / b).log()).sum()

    if name == "product":
        assert imagined is not None
        both = p["original"] * p["imagined"].detach() ** (config.product_weight if is_content else 0)
        trained = {"imagined_ce": ce(imagined)} if config.imagined_weight > 0 else {}
        return {"ce": -(both / both.sum())[target].log(), **trained}
    if name == "honest":
        assert imagined is not None
        return {"ce": ce(original), "imagined_ce": ce(imagined)}
    if name == "reweight":
        return {"ce": ce(original)}
    alpha: float | torch.Tensor = config.effective_alpha
    if name == "weighted" and imagined is not None:
        if config.alpha_weight == "agreement":
            alpha = alpha * (int(original.argmax()) != int(imagined.argmax()))
        else:
            middle = ((p["original"] + p["imagined"]) / 2).log()
            alpha = alpha * ((kl(original, middle) + kl(imagined, middle)) / 2 / math.log(2)).detach()
    subtracted = 0 if imagined is None else alpha * imagined
    u, v = original - subtracted, None if refined is None else refined - subtracted
    if name in ("teacher", "honest-teacher"):
        assert v is not None
        own = {"imagined_ce": ce(imagined)} if name == "honest-teacher" and imagined is not None else {}
        return {"ce": ce(u), "refined_ce": ce(v), "kl": kl(v.detach(), u), **own}
    forwards = config.kl_direction == "original_refined"
    zero = torch.zeros((), dtype=original.dtype)
    return {"ce": ce(u), "kl": zero if v is None else kl(u, v) if forwards else kl(v, u)}


def naive_loss(terms: dict[str, torch.Tensor], config: D2ESection) -> torch.Tensor:
    """The sum of the terms, each as often as the recipe says."""
    weights = {"kl": config.kl_weight, "imagined_ce": config.imagined_weight}
    return torch.stack([weights.get(name, 1.0) * term for name, term in terms.items()]).sum()


def naive_sums(
    model: Any, rows: Sequence[dict[str, Any]], config: D2ESection, bias: Any = None
) -> dict[str, torch.Tensor]:
    """The loss, its terms and the counts: one sample and one view at a time, unpadded, from whole logits.

    Frozen views are those of the model `bias`.
    """
    totals: dict[str, torch.Tensor] = {}
    for row in rows:
        answer, logits = torch.tensor(row["answer"]), dict[str, torch.Tensor]()
        for view in config.views:
            if model.config.is_encoder_decoder:
                decoder = torch.tensor([[model.config.decoder_start_token_id, *row["answer"][:-1]]])
                logits[view] = model(input_ids=torch.tensor([row[view]]), decoder_input_ids=decoder).logits[0]
            else:
                of = bias if view in config.frozen_views else model
                logits[view] = of(input_ids=torch.tensor([row[view] + row["answer"]])).logits[0, -len(answer) - 1 : -1]
            if view in config.frozen_views or (view != "original" and config.view_gradients == "original"):
                logits[view] = logits[view].detach()
        terms = naive_terms(logits, answer, torch.tensor(row["content"]), config)
        loss = naive_loss(terms, config)
        original, imagined = logits["original"], logits.get("imagined", torch.zeros(()))
        right = {
            "correct": original - config.decoding_alpha * imagined,
            "plain_correct": original,
            "imagined_correct": imagined.expand_as(original) if "imagined" in logits else None,
        }
        hits = {name: torch.tensor(0) if z is None else (z.argmax(-1) == answer).sum() for name, z in right.items()}
        weight = answer_weight(logits, answer, torch.tensor(row["content"]), config)
        mass = {} if weight is None else {"sample_weight": torch.tensor(weight * len(answer))}
        for name, value in {"loss": loss, **terms, **mass, **hits}.items():
            totals[name] = totals.get(name, 0) + value
    return totals


def gradients_of(model: Any) -> dict[str, torch.Tensor]:
    """The gradients that a backward left, by parameter name."""
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def sums_of(model: Any, rows: Sequence[dict[str, Any]], config: D2ESection, layout: Layout) -> dict[str, torch.Tensor]:
    """What the model's forward gives for one batch of a layout, with the objective attached."""
    sums: dict[str, torch.Tensor] = model(**model_inputs(collator_for(layout, config, model.config)(rows)))
    return sums


def assert_equal_to_naive(
    model: Any,
    config: D2ESection,
    packing: Packing,
    attention: str | None = None,
    *,
    formula: D2ESection | None = None,
    rows: Sequence[dict[str, Any]] | None = None,
) -> Layout:
    """In the model's dtype: the parts to 1e-6 of the loss, each parameter's gradient to 1e-5 of its norm.

    Args:
        formula: of the naive form, where it is not the objective's own name.
        rows: of the batch; None for `encoded_rows`.
    """
    rows = encoded_rows(config) if rows is None else rows
    reference = copy.deepcopy(model)
    expected = naive_sums(reference, rows, formula or config)
    expected["loss"].backward()
    layout = choose_layout(model, config, packing, attention)
    attach_objective(model, config, through_logits=layout.through_logits)
    sums = sums_of(model, rows, config, layout)
    sums["loss"].backward()
    assert sums.keys() == expected.keys()
    for name, value in expected.items():
        assert sums[name].item() == pytest.approx(value.item(), abs=1e-6 * expected["loss"].item()), name
    ours, theirs = gradients_of(model), gradients_of(reference)
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        # k_proj.bias of Qwen2 and the like: mathematically zero, so there is nothing to be relative to.
        if gradient.norm() > 1e-4:
            assert (ours[name] - gradient).norm() <= 1e-5 * gradient.norm(), name
    return layout
