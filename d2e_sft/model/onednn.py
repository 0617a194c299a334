"""Linear layers whose weights are in oneDNN's own order, for decoding in float32 on a CPU.

torch multiplies float32 matrices by MKL, which uses half of the vector width of an AMD processor; oneDNN uses all of
it. The weights are reordered once, which makes steps with few rows faster, too. The result of a row does not depend on
the number of rows that are multiplied together.
"""

from typing import Any

import torch
from torch import Tensor, nn


class ReorderedLinear(nn.Module):
    """Computes the same as a `nn.Linear` in float32 on a CPU, without gradient."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features, self.bias = linear.in_features, linear.out_features, linear.bias
        reordered = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)
        self.register_buffer("weight", reordered, persistent=False)

    def forward(self, states: Tensor) -> Tensor:
        """(…, in_features) → (…, out_features)."""
        result: Tensor = torch.ops.mkldnn._linear_pointwise(states, self.weight, self.bias, "none", [], "")
        return result


def ready_to_decode(model: Any, device: torch.device | str) -> Any:
    """Move a model to its device in eval mode and reorder its weights; it can no longer be trained or saved."""
    model.to(device).eval()
    by_mkl = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()  # builds for x86
    if torch.device(device).type == "cpu" and by_mkl:
        for module in list(model.modules()):
            for name, child in module.named_children():
                if type(child) is nn.Linear and child.weight.dtype == torch.float32:
                    setattr(module, name, ReorderedLinear(child))
    return model
