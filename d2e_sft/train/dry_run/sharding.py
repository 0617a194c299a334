"""The share of memory that each process has under a launcher."""

from __future__ import annotations

from dataclasses import replace

from d2e_sft.train.dry_run.memory import MemoryEstimate

# Launcher → the parts that it divides among its processes, and those that it keeps in host memory.
SHARDED: dict[str, tuple[str, ...]] = {
    "ddp": (),
    "fsdp2": ("weights", "gradients", "optimizer"),
    "zero2": ("gradients", "optimizer"),
    "zero2-offload": ("gradients", "optimizer"),
    "zero3": ("weights", "gradients", "optimizer"),
    "zero3-offload": ("weights", "gradients", "optimizer"),
}
ON_HOST: dict[str, tuple[str, ...]] = {"zero2-offload": ("optimizer",), "zero3-offload": ("weights", "optimizer")}


def on_each_device(whole: MemoryEstimate, launcher: str, processes: int) -> tuple[MemoryEstimate, int]:
    """One process's share under a launcher, and its bytes in host memory.

    Computed from the sizes. It includes DDP's communication buffers, which are as large as the gradients, and leaves
    out other engines' buffers and their copies of weights in another precision.

    Args:
        launcher: a key of `SHARDED`.
    """
    if processes == 1:
        return whole, 0
    sizes = {"weights": whole.weights, "gradients": whole.gradients, "optimizer": whole.optimizer}
    sizes |= {part: -(-sizes[part] // processes) for part in SHARDED[launcher]}
    if launcher == "ddp":
        sizes["gradients"] *= 2
    on_host = ON_HOST.get(launcher, ())
    host = sum(sizes[part] for part in on_host)
    sizes |= dict.fromkeys(on_host, 0)
    if "weights" in SHARDED[launcher]:
        sizes["weights"] += whole.largest_layer  # gathered while it is computed
    return replace(whole, **sizes), host
