"""Available attention implementations: d2e's choice for this device, and those of transformers."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from d2e_sft.doctor.finding import Finding
from d2e_sft.doctor.versions import installed_version
from d2e_sft.model.attention.registry import BY_BRANCH, DENSE, FLEX


def check_attentions() -> Iterator[Finding]:
    """Report the attention for packed rows, whether flex_attention is available, and transformers' implementations."""
    flex = _flex()
    chosen = FLEX if torch.cuda.is_available() and flex.status == "ok" else BY_BRANCH
    yield Finding("packed rows", "ok", f"this device uses {chosen}; {', '.join(DENSE)} use a dense mask")
    yield flex
    yield Finding("transformers", "ok", ", ".join(_transformers_offers()))


def _flex() -> Finding:
    if not torch.cuda.is_available():
        return Finding(FLEX, "ok", f"not used: it needs CUDA; {BY_BRANCH} runs everywhere")
    from d2e_sft.model.attention.flex import flex_agrees

    if flex_agrees(torch.device("cuda"), heads=4, key_heads=2, width=64):
        return Finding(FLEX, "ok", "compiles; its outputs and gradients equal attention by segments")
    return Finding(
        FLEX, "warn", f"does not compile or disagrees; {BY_BRANCH} is used", "install triton and a C compiler"
    )


def _transformers_offers() -> list[str]:
    """Return the installed values of model.attention other than d2e's own."""
    names = [*DENSE]
    if installed_version("flash-attn") is not None and torch.cuda.is_available():
        names.append("flash_attention_2 (not for packed rows)")
    from transformers.utils import is_torch_flex_attn_available

    if is_torch_flex_attn_available():
        names.append("flex_attention (not for packed rows)")
    return names
