"""A step's time by kind of operation."""

from __future__ import annotations

import pytest
import torch

from d2e_sft.bench.step_profile import KINDS, kind_of, time_by_kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::mm", "matrix products"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32", "matrix products"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu_backward", "attention"),
        ("_BranchFlashBackward", "attention"),
        ("aten::copy_", "copies and fills"),
        ("aten::index_select", "copies and fills"),
        ("aten::t", "views"),
        ("aten::_unsafe_view", "views"),
        ("aten::topk", "elementwise and sums"),
        ("aten::_log_softmax", "elementwise and sums"),
        ("autograd::engine::evaluate_function: MmBackward0", "engine and Python"),
        ("MmBackward0", "engine and Python"),
    ],
)
def test_operations_have_a_kind(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_large_products_take_most_of_the_time_of_large_products() -> None:
    left, right = torch.rand(512, 512), torch.rand(512, 512)
    of = time_by_kind(lambda: [left @ right for _ in range(20)], torch.device("cpu"))
    assert of["matrix products"] > 0.5
    assert sum(of.values()) == pytest.approx(1)
    assert tuple(of) == KINDS
