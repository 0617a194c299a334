"""Available attention implementations: d2e's choice for this device, and those of transformers."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from d2e_sft.doctor.finding import Finding
from d2e_sft.doctor.versions import installed_version
from d2e_sft.model.attention.registry import BY_BRANCH, DENSE, FLEX


def check_attentions() -> Iterator[Finding]:
    """Report the attention for packed rows, whether flex_attention is available, and transformers' implementations."""
    from transformers.utils import is_torch_flex_attn_available

    cuda, flex = torch.cuda.is_available(), _flex()
    chosen = FLEX if cuda and flex.status == "ok" else BY_BRANCH
    yield Finding("packed rows", "ok", f"this device uses {chosen}; {', '.join(DENSE)} use a dense mask")
    yield flex
    others = {
        "flash_attention_2": cuda and installed_version("flash-attn") is not None,
        "flex_attention": is_torch_flex_attn_available(),
    }
    names = [*DENSE, *(f"{name} (not for packed rows)" for name, installed in others.items() if installed)]
    yield Finding("transformers", "ok", ", ".join(names))


def _flex() -> Finding:
    if not torch.cuda.is_available():
        return Finding(FLEX, "ok", f"not used: it needs CUDA; {BY_BRANCH} runs everywhere")
    from d2e_sft.model.attention.flex import flex_agrees

    if flex_agrees(torch.device("cuda"), heads=4, key_heads=2, width=64):
        return Finding(FLEX, "ok", "compiles; its outputs and gradients equal attention by segments")
    problem = f"does not compile or disagrees; {BY_BRANCH} is used"
    return Finding(FLEX, "warn", problem, "install triton and a C compiler")
