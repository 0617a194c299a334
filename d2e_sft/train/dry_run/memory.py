"""Estimate the memory of a training step that does not fit this machine.

The model is copied as fake tensors, which have shapes and devices but no data. A forward and a backward pass of the
real objective make every tensor that training makes, and each operation updates the count of living bytes. The
estimate leaves out fragmentation, Python with its libraries, and a CUDA context.
"""

import copy
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from d2e_sft.config.recipe import D2ESection, TrainSection
from d2e_sft.model.collation import AnswerPairs, model_inputs
from d2e_sft.model.device import usable_device
from d2e_sft.model.forward import enable_checkpointing
from d2e_sft.model.packing_support import Layout
from d2e_sft.objective.attach import AttachedObjective

# Part of an optimiser's name → number of state tensors per parameter; all others have two.
_MOMENTS = {"schedule_free_sgd": 1, "sgd": 0, "adagrad": 1, "rmsprop": 1, "lion": 1, "ademamix": 3, "grokadamw": 3}

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


# Part of an estimate, as it is shown → its field.
PARTS = {
    "weights": "weights",
    "gradients": "gradients",
    "optimiser state": "optimizer",
    "activations": "activations",
}


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes at the peak of an optimiser step on one device."""

    weights: int  # and buffers
    gradients: int
    optimizer: int
    activations: int  # everything else: saved for the backward pass, or temporary
    largest_layer: int = 0  # weights gathered in full if they are sharded

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.activations


class TensorBytes(TorchDispatchMode):
    """Counts the bytes of living tensors, each storage once, while it is active: `now` and `peak`."""

    def __init__(self, known: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.now = 0
        self.peak = 0
        self._alive: dict[int, weakref.ref[Any]] = {}
        for tensor in known:
            self._count(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._count(leaf)
        return result

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = id(storage), storage.nbytes()
        known = self._alive.get(key)
        if known is not None and known() is storage:
            return

        def freed(_: Any) -> None:
            self.now -= size
            self._alive.pop(key, None)

        self._alive[key] = weakref.ref(storage, freed)
        self.now += size
        self.peak = max(self.peak, self.now)


def estimate_memory(
    model: Any, d2e: D2ESection, layout: Layout, batch: Mapping[str, Any], train: TrainSection, accumulation: int = 2
) -> MemoryEstimate:
    """Return the memory of an optimiser step over micro-batches that are all like `batch`, on the usable device.

    From two micro-batches (`accumulation`) on, a backward pass finds gradients in place. Raises
    RuntimeError, NotImplementedError or TypeError if the model's computation depends on its data.
    """
    device = usable_device()
    inputs = model_inputs(batch)
    forest = inputs.get("forest")
    if forest is not None:  # makes its own small tensors while tensors still have values, which the model reads
        _ = forest.position_ids, forest.segment_ids, forest.is_above
        for start, end in ((0, forest.length), (0, forest.lead), (forest.lead, forest.length)):
            if start < end:
                _ = forest.plan(start, end).blocks
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with FakeCopyMode(fake):
        shadow = copy.deepcopy(model)
    with fake:
        _move(shadow, device)
        objective = AttachedObjective(shadow, d2e, layout)
        if train.gradient_checkpointing:
            enable_checkpointing(shadow)
        shadow.train()
        movable = (Tensor, AnswerPairs)
        moved = {name: value.to(device) if isinstance(value, movable) else value for name, value in inputs.items()}
        tensors = TensorBytes([*shadow.parameters(), *shadow.buffers()])
        weights = tensors.now
        with tensors:
            # The second finds gradients in place, as all do but a step's first.
            for _ in range(min(accumulation, 2)):
                objective.backward(shadow, moved, train.precision, device)
    trained = [parameter for parameter in shadow.parameters() if parameter.requires_grad]
    gradients = sum(_bytes(parameter.grad) for parameter in trained if parameter.grad is not None)
    optimizer = sum(optimizer_bytes(train.optim, parameter) for parameter in trained)
    # Without accumulation the gradients come while the activations go: together they may be less than their sum.
    activations = max(tensors.peak - weights - gradients, 0)
    return MemoryEstimate(weights, gradients, optimizer, activations, _largest_layer(shadow))


def on_each_device(
    whole: MemoryEstimate,
    launcher: str,
    processes: int,
    half: MemoryEstimate | None = None,
    *,
    accumulates: bool = False,
) -> tuple[MemoryEstimate, int]:
    """Return one process's share under `launcher`, a key of `SHARDED`, and its bytes in host memory.

    Computed from the sizes. It includes DDP's communication buffers, which are as large as the gradients, and leaves
    out other engines' buffers. `half` is the estimate with weights in 16 bits, as sharded engines compute with them:
    FSDP2 gathers them so. DeepSpeed keeps them so, and its optimiser shards the float32 weights. FSDP2 `accumulates`
    gradients in full, and shards them with a step's last micro-batch.
    """
    if processes == 1:
        return whole, 0
    sizes = {"weights": whole.weights, "gradients": whole.gradients, "optimizer": whole.optimizer}
    gathered, activations = whole.largest_layer, whole.activations
    if half is not None and launcher != "ddp":
        gathered, activations = half.largest_layer, half.activations
        if launcher != "fsdp2":
            sizes["weights"] = half.weights
            sizes["optimizer"] += whole.gradients  # of as many float32 weights
    sizes |= {part: -(-sizes[part] // processes) for part in SHARDED[launcher]}
    if launcher == "ddp":
        sizes["gradients"] *= 2
    if launcher == "fsdp2" and accumulates:
        sizes["gradients"] += (half or whole).gradients
    on_host = ON_HOST.get(launcher, ())
    host = sum(sizes[part] for part in on_host)
    sizes |= dict.fromkeys(on_host, 0)
    if "weights" in SHARDED[launcher]:
        sizes["weights"] += gathered  # while it is computed
    return replace(whole, **sizes, activations=activations), host


def optimizer_bytes(name: str, parameter: Tensor) -> int:
    """Bytes of an optimiser's state for a parameter: its moments, in the weights' dtype or in 8 or 4 bits."""
    if name == "adafactor":  # a factored second moment: a row and a column of each matrix
        size, shape = parameter.numel(), parameter.shape
        return (size if len(shape) < 2 else size // shape[-1] + size // shape[-2]) * parameter.element_size()
    moments = next((count for family, count in _MOMENTS.items() if family in name), 2)
    if name.endswith(("_8bit", "_4bit")):
        return int(moments * parameter.numel() * (1 if name.endswith("_8bit") else 0.5))
    return moments * _bytes(parameter)


def _move(model: nn.Module, device: torch.device) -> None:
    """`model.to(device)` for fake tensors, whose parameters torch cannot swap in place."""
    moved: dict[int, nn.Parameter] = {}  # by the parameter's identity: tied weights stay tied
    for module in list(model.modules()):
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.device != device:
                new = nn.Parameter(parameter.detach().to(device), parameter.requires_grad)
                module._parameters[name] = moved.setdefault(id(parameter), new)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = buffer.to(device)


def _largest_layer(model: nn.Module) -> int:
    """Return the bytes of the largest repeated block, or of the largest parameter outside, usually the embedding."""
    blocks = [block for module in model.modules() if isinstance(module, nn.ModuleList) for block in module]
    inside = {id(parameter) for block in blocks for parameter in block.parameters()}
    sizes = [sum(_bytes(parameter) for parameter in block.parameters()) for block in blocks]
    sizes += [_bytes(parameter) for parameter in model.parameters() if id(parameter) not in inside]
    return max(sizes, default=0)


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
