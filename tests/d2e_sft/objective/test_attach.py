"""The objective in a model's forward equals one forward a view and sample, in every layout and architecture."""

import re
from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch

from d2e_sft.config.recipe import D2ESection, Packing
from d2e_sft.model.packing_support import choose_layout, collator_for
from d2e_sft.objective.attach import AttachedObjective
from d2e_sft.util.errors import UserError
from tests.naive import (
    CONFIGS,
    assert_equal_to_naive,
    encoded_rows,
    gradients_of,
    naive_sums,
    sums_of,
    with_equal_views,
)
from tests.tiny import tiny_model, with_lora

# gemma3: a window in one layer, capped logits; granite: scaled logits; phi: a head with a bias.
PACKABLE = [
    "llama",
    "qwen2",
    "qwen3",
    "mistral",
    "mistral-window",
    "gemma3",
    "gemma4",
    "gpt2",
    "granite",
    "granite4",
    "phi",
]
NOT_PACKABLE = {
    "mamba": "layers that do not attend .linear_attention.",
    "bloom": "does not take an attention function",  # positions as a bias of the scores
    "gemma2": "caps its attention scores",
    "qwen3.5": "layers that do not attend .linear_attention.",
    "lfm2": "layers that do not attend .conv.",
    "granite4-hybrid": "layers that do not attend .linear_attention.",
}


@pytest.mark.parametrize("config", [D2ESection(), D2ESection(view_gradients="original")], ids=["all", "original"])
@pytest.mark.parametrize("kind", PACKABLE)
def test_a_packed_row_equals_one_forward_a_view_and_sample(kind: str, config: D2ESection) -> None:
    layout = assert_equal_to_naive(tiny_model(kind, seed=3), config, "auto")
    assert (layout.packing, layout.attention, layout.reason) == ("shared_batch", "d2e_by_branch", None)


ALL_EQUAL = ("d2e", "no-debias-original-gradient", "teacher")


@pytest.mark.parametrize(
    ("config", "unrefined", "bare"),
    [
        *((config, [0, 2], [3]) for config in CONFIGS.values()),
        *((CONFIGS[name], [0, 1, 2, 3], []) for name in ALL_EQUAL),
        *((CONFIGS[name], [], [0, 1, 2, 3]) for name in ALL_EQUAL),
    ],
    ids=[*CONFIGS, *(f"{name}-{kind}" for kind in ("none-refined", "no-context") for name in ALL_EQUAL)],
)
@pytest.mark.parametrize("packing", ["shared_batch", "shared_prefix", "batched", "encoder_decoder"])
def test_equal_views_are_computed_once(
    packing: Any, config: D2ESection, unrefined: list[int], bare: list[int]
) -> None:
    given = encoded_rows(config)
    rows = with_equal_views(given, unrefined, bare)
    # float64 for T5, as below.
    model = tiny_model("t5", seed=3).double() if packing == "encoder_decoder" else tiny_model("llama", seed=3)
    layout = assert_equal_to_naive(model, config, "auto" if packing == "encoder_decoder" else packing, rows=rows)
    before, batch = (collator_for(layout, config, model.config)(one) for one in (given, rows))
    assert batch["kl_rows"] == (4 - len({*unrefined, *bare}) if "refined" in config.views else 0)
    if len(config.views) > 1 and (bare or "refined" in config.views):
        assert batch["input_ids"].numel() < before["input_ids"].numel()
    if packing in ("batched", "encoder_decoder"):
        kept = 4 * len(config.views) - len(bare) * (len(config.views) - 1)
        kept -= len(unrefined) if "refined" in config.views else 0
        # Without gradients of the other views one of them is always computed: see `sources`.
        alone = config.view_gradients == "original" and len(config.views) > 1 and kept == 4
        assert len(batch["input_ids"]) == kept + alone


@pytest.mark.parametrize(
    ("kind", "attention"), [*product(PACKABLE, ["eager"]), *product(["llama", "mistral-window", "gemma3"], ["sdpa"])]
)
def test_transformers_own_attention_takes_a_packed_row_as_a_dense_mask(kind: str, attention: str) -> None:
    model = tiny_model(kind, seed=3)
    if kind == "gemma4":  # four layers: in float32 rounding exceeds the tolerance
        model.double()
    layout = assert_equal_to_naive(model, D2ESection(), "shared_batch", attention)
    assert layout.attention == attention


@pytest.mark.parametrize("kind", NOT_PACKABLE)
def test_a_model_that_cannot_be_packed_is_batched_and_says_why(kind: str) -> None:
    model = tiny_model(kind, seed=3)
    if kind == "mamba":  # in float32 its scan loses more than the tolerance, on some processors
        model.double()
    # Qwen3.5 computes its decays in float32 whatever the dtype.
    tolerance = 1e-4 if kind == "qwen3.5" else 1e-5
    layout = assert_equal_to_naive(model, D2ESection(), "auto", tolerance=tolerance)
    assert layout.packing == "batched"
    assert re.search(NOT_PACKABLE[kind], layout.describe())
    with pytest.raises(UserError, match=f"train.packing=shared_prefix: not exact here .*{NOT_PACKABLE[kind]}"):
        choose_layout(tiny_model(kind), D2ESection(), "shared_prefix")


@pytest.mark.parametrize("packing", ["auto", "batched"])
def test_a_head_with_a_step_of_its_own_is_taken_through_the_models_logits(packing: Packing) -> None:
    model = tiny_model("llama", seed=3)
    plain = model.forward

    def shifted(*args: Any, **inputs: Any) -> Any:
        output = plain(*args, **inputs)
        output.logits = output.logits * torch.linspace(0.5, 2, output.logits.shape[-1])
        return output

    model.forward = shifted
    config, rows = D2ESection(), encoded_rows(D2ESection())
    expected = naive_sums(model, rows, config)
    layout = choose_layout(model, config, packing)
    assert (layout.packing, layout.through_logits) == ("batched", True)
    assert sums_of(model, rows, config, layout)["loss"].item() == pytest.approx(expected["loss"].item(), rel=1e-6)


def _mild(kind: str) -> Any:
    """A tiny model less sharp than the others: rounding must not be magnified."""
    model = tiny_model(kind, seed=3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.div_(4)
    return model


def _loss_and_gradient(
    model: Any,
    config: D2ESection,
    packing: Packing = "auto",
    mixed: torch.dtype | None = None,
    unrefined: Sequence[int] = (),
) -> tuple[float, torch.Tensor]:
    layout = choose_layout(model, config, packing)
    assert layout.packing == ("shared_batch" if packing == "auto" else packing)
    with torch.autocast("cpu", mixed, enabled=mixed is not None):
        sums = sums_of(model, with_equal_views(encoded_rows(config), unrefined), config, layout)
    sums["loss"].backward()
    gradients = gradients_of(model)
    return sums["loss"].item(), torch.cat([gradients[name].flatten().float() for name in sorted(gradients)])


@pytest.mark.parametrize("unrefined", [[], [0, 2], [0, 1, 2, 3]])
@pytest.mark.parametrize("packing", ["auto", "batched"])
@pytest.mark.parametrize("view_gradients", ["all", "original"])
def test_gradient_checkpointing_changes_nothing(view_gradients: Any, packing: Packing, unrefined: list[int]) -> None:
    config, plain, checkpointed = D2ESection(view_gradients=view_gradients), *(tiny_model(seed=3) for _ in range(2))
    checkpointed.train().gradient_checkpointing_enable({"use_reentrant": False})
    (loss, gradient), (expected, other) = (
        _loss_and_gradient(model, config, packing, unrefined=unrefined) for model in (checkpointed, plain)
    )
    assert loss == expected
    torch.testing.assert_close(gradient, other, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("kind", "dtype", "options"),
    [
        *product(["llama", "qwen3", "gemma3", "gpt2"], [torch.bfloat16], [{}]),
        *product(["llama", "gemma3"], [torch.float16], [{}]),
        *product(["llama"], [torch.bfloat16, torch.float16], [{"view_gradients": "original"}]),
        ("llama", torch.bfloat16, {"objective": "teacher"}),
    ],
)
def test_mixed_precision_differs_only_by_rounding(kind: str, dtype: torch.dtype, options: dict[str, Any]) -> None:
    config = D2ESection(**options)
    exact, exact_gradient = _loss_and_gradient(_mild(kind), config)
    mixed, mixed_gradient = _loss_and_gradient(_mild(kind), config, mixed=dtype)
    assert not torch.equal(mixed_gradient, exact_gradient), "mixed precision was not on"
    assert mixed_gradient.isfinite().all()
    assert mixed == pytest.approx(exact, rel=5e-3)
    assert (mixed_gradient - exact_gradient).norm() < 0.05 * exact_gradient.norm()


def test_the_model_is_as_it_was_after_a_call_and_after_one_that_fails() -> None:
    model, config = with_lora(tiny_model("llama", seed=3)), D2ESection()
    ids, causal = torch.tensor([[9, 8, 7, 6, 5]]), model.get_base_model()
    logits, plain = model(input_ids=ids).logits, causal.forward
    layout, rows = choose_layout(model, config), encoded_rows(config)
    for forward in (None, partial(plain)):  # its class's, and one that was put over it
        if forward is not None:
            causal.forward = forward
        expected = sums_of(model, rows, config, layout)
        objective = AttachedObjective(model, config, layout)
        with pytest.raises(KeyError):
            objective.sums(model, {"targets": torch.tensor([1])})
        assert vars(causal).get("forward") is forward
        torch.testing.assert_close(model(input_ids=ids).logits, logits)
        assert sums_of(model, rows, config, layout) == expected
