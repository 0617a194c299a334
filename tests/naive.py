"""The objective the naive way, one forward a view and sample, and what is compared with it."""

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from d2e_sft.config.recipe import D2ESection, Packing
from d2e_sft.data.chat_template import FormatPrompt
from d2e_sft.data.prompts import PromptSet
from d2e_sft.data.views import ViewEncoder
from d2e_sft.model.collation import model_inputs
from d2e_sft.model.packing_support import Layout, choose_layout, collator_for
from d2e_sft.objective.attach import AttachedObjective
from d2e_sft.train.rows import encode_samples
from tests.tiny import make_samples, tiny_tokenizer

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
    "teacher": D2ESection(objective="teacher", kl_weight=0.3),
    "debiased-teacher": D2ESection(objective="teacher", debias=True),
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


def with_equal_views(rows: Sequence[dict[str, Any]], unrefined: Sequence[int], bare: Sequence[int] = ()) -> Any:
    """The rows; the refined view of some is the original, and some have no context: all their views are equal."""
    views = {"original", "imagined", "refined"}
    copied = [dict.fromkeys(views & row.keys(), row["original"]) for row in rows]
    return [
        row | (copied[i] if i in bare else {"refined": row["original"]} if i in unrefined and "refined" in row else {})
        for i, row in enumerate(rows)
    ]


def naive_terms(logits: dict[str, torch.Tensor], targets: torch.Tensor, config: D2ESection) -> dict[str, torch.Tensor]:
    """Each term of an objective over the tokens (n,) of an answer, from whole logits (n, V), as its formula has it.

    Written without the package's functions, one token at a time.
    """
    terms: dict[str, torch.Tensor] = {}
    for i, target in enumerate(targets):
        at = {view: of_view[i] for view, of_view in logits.items()}
        for name, value in _token_terms(at, int(target), config).items():
            terms[name] = terms.get(name, torch.zeros((), dtype=value.dtype)) + value
    return terms


def _token_terms(at: dict[str, torch.Tensor], target: int, config: D2ESection) -> dict[str, torch.Tensor]:
    original, imagined, refined = (at.get(view) for view in ("original", "imagined", "refined"))
    assert original is not None

    def ce(z: torch.Tensor) -> torch.Tensor:
        return -z.softmax(0)[target].log()

    def kl(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        a, b = one.softmax(0), other.softmax(0)
        return (a * (a / b).log()).sum()

    subtracted = 0 if imagined is None else config.effective_alpha * imagined
    u, v = original - subtracted, None if refined is None else refined - subtracted
    if config.objective == "teacher":
        assert v is not None
        return {"ce": ce(u), "refined_ce": ce(v), "kl": kl(v.detach(), u)}
    forwards = config.kl_direction == "original_refined"
    return {"ce": ce(u), **({} if v is None else {"kl": kl(u, v) if forwards else kl(v, u)})}


def naive_loss(terms: dict[str, torch.Tensor], config: D2ESection) -> torch.Tensor:
    """The sum of the terms, each as often as the recipe says."""
    return torch.stack([(config.kl_weight if name == "kl" else 1.0) * term for name, term in terms.items()]).sum()


def naive_sums(model: Any, rows: Sequence[dict[str, Any]], config: D2ESection) -> dict[str, torch.Tensor]:
    """The loss, its terms and the counts: one sample and one view at a time, unpadded, from whole logits."""
    totals: dict[str, torch.Tensor] = {}
    for row in rows:
        answer, logits = torch.tensor(row["answer"]), dict[str, torch.Tensor]()
        for view in config.views:
            if model.config.is_encoder_decoder:
                decoder = torch.tensor([[model.config.decoder_start_token_id, *row["answer"][:-1]]])
                logits[view] = model(input_ids=torch.tensor([row[view]]), decoder_input_ids=decoder).logits[0]
            else:
                ids = torch.tensor([row[view] + row["answer"]])
                logits[view] = model(input_ids=ids).logits[0, -len(answer) - 1 : -1]
            if view != "original" and config.view_gradients == "original":
                logits[view] = logits[view].detach()
        terms = naive_terms(logits, answer, config)
        loss = naive_loss(terms, config)
        original, imagined = logits["original"], logits.get("imagined", torch.zeros(()))
        right = {
            "correct": original - config.effective_alpha * imagined,
            "plain_correct": original,
            "imagined_correct": imagined.expand_as(original) if "imagined" in logits else None,
        }
        hits = {name: torch.tensor(0) if z is None else (z.argmax(-1) == answer).sum() for name, z in right.items()}
        for name, value in {"loss": loss, **terms, **hits}.items():
            totals[name] = totals.get(name, 0) + value
    return totals


def gradients_of(model: Any) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def sums_of(model: Any, rows: Sequence[dict[str, Any]], config: D2ESection, layout: Layout) -> dict[str, torch.Tensor]:
    """What the model gives for one batch of a layout, with the objective attached."""
    objective = AttachedObjective(model, config, layout)
    return objective.sums(model, model_inputs(collator_for(layout, config, model.config)(rows)))


def assert_equal_to_naive(
    model: Any,
    config: D2ESection,
    packing: Packing,
    attention: str | None = None,
    *,
    formula: D2ESection | None = None,
    rows: Sequence[dict[str, Any]] | None = None,
    tolerance: float = 1e-5,
) -> Layout:
    """In the model's dtype: the parts to 1e-6 of the loss, each parameter's gradient to 1e-5 of its norm.

    Args:
        formula: of the naive form, where it is not the objective's own name.
        rows: of the batch; None for `encoded_rows`.
        tolerance: of the gradients, where it is not 1e-5.
    """
    rows = encoded_rows(config) if rows is None else rows
    reference = copy.deepcopy(model)
    expected = naive_sums(reference, rows, formula or config)
    expected["loss"].backward()
    layout = choose_layout(model, config, packing, attention)
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
            assert (ours[name] - gradient).norm() <= tolerance * gradient.norm(), name
    return layout
