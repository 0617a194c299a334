"""The share of memory that each process has under a launcher."""

from __future__ import annotations

from dataclasses import dataclass, replace

from d2e_sft.train.dry_run.memory import MemoryEstimate


@dataclass(frozen=True)
class Sharding:
    """What a launcher shards over its processes, and what it keeps in host memory."""

    weights: bool = False
    gradients: bool = False
    optimizer: bool = False
    optimizer_on_host: bool = False
    weights_on_host: bool = False


SHARDING = {
    "ddp": Sharding(),
    "fsdp2": Sharding(weights=True, gradients=True, optimizer=True),
    "zero2": Sharding(gradients=True, optimizer=True),
    "zero2-offload": Sharding(gradients=True, optimizer=True, optimizer_on_host=True),
    "zero3": Sharding(weights=True, gradients=True, optimizer=True),
    "zero3-offload": Sharding(
        weights=True, gradients=True, optimizer=True, optimizer_on_host=True, weights_on_host=True
    ),
}


def on_each_device(whole: MemoryEstimate, launcher: str, processes: int) -> tuple[MemoryEstimate, int]:
    """One process's share under a launcher, and its bytes in host memory.

    Computed from the sizes. It includes DDP's communication buffers, which are as large as the gradients, and leaves
    out other engines' buffers and their copies of weights in another precision.

    Args:
        launcher: a key of `SHARDING`.
    """
    if processes == 1:
        return whole, 0
    sharding, host = SHARDING[launcher], 0

    def share(size: int, spread: bool) -> int:
        return -(-size // processes) if spread else size

    weights = share(whole.weights, sharding.weights)
    gradients = share(whole.gradients, sharding.gradients)
    optimizer = share(whole.optimizer, sharding.optimizer)
    if launcher == "ddp":
        gradients *= 2
    if sharding.weights_on_host:
        host, weights = host + weights, 0
    if sharding.optimizer_on_host:
        host, optimizer = host + optimizer, 0
    gathered = whole.largest_layer if sharding.weights else 0
    return replace(whole, weights=weights + gathered, gradients=gradients, optimizer=optimizer), host
