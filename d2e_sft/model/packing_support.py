"""Choose the batch layout of a model: packed rows if they are exact for it, else one row per view.

Exactness is measured once, on sequences of random tokens, on the device that computes afterwards. It is not measured
under ZeRO-3 or without weights.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from accelerate import PartialState
from torch import nn
from transformers.integrations import is_deepspeed_zero3_enabled
from transformers.modeling_layers import GradientCheckpointingLayer

from d2e_sft.config.recipe import D2ESection, Packing
from d2e_sft.model.attention.registry import BY_BRANCH, DENSE, register
from d2e_sft.model.collation import Collator
from d2e_sft.model.device import is_device_error, is_out_of_memory, without_cudnn_attention
from d2e_sft.model.forward import bare_model, evaluating, head_of, hidden_states, packed_states
from d2e_sft.model.packing import pack
from d2e_sft.util.distributed import from_all
from d2e_sft.util.errors import UserError

_TAKE_TREES = (BY_BRANCH, *DENSE)
_LAYERS_THAT_ATTEND = {"full_attention", "sliding_attention"}
_TAKES_PACKED_ROWS: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


@dataclass(frozen=True)
class Layout:
    """How batches are laid out; `reason` says why the automatic choice is not to pack.

    `through_logits` takes the logits of the model's own forward, as `head_of` does not know its head.
    """

    packing: Literal["shared_batch", "shared_prefix", "batched", "encoder_decoder"]
    attention: str
    reason: str | None = None
    through_logits: bool = False

    @property
    def takes_own_logits(self) -> bool:
        return self.through_logits or self.packing == "encoder_decoder"

    def describe(self) -> str:
        why = f" ({self.reason})" if self.reason else ""
        return f"packing: {self.packing}{why}; attention: {self.attention}"


def agree_on_layout(model: Any, d2e: D2ESection, packing: Packing = "auto", attention: str | None = None) -> Layout:
    """Choose a layout on each process's device, wherever the weights are; if one process cannot pack, none does."""
    state, causal = PartialState(), bare_model(model)

    def choose() -> Layout:
        with computing_on(state.device, causal):
            return choose_layout(model, d2e, packing, attention)

    layouts = from_all(state, choose)
    layout = next((layout for layout in layouts if layout.reason or layout.through_logits), layouts[0])
    if causal.config._attn_implementation != layout.attention:  # another process chose it
        causal.set_attn_implementation(layout.attention)
    return layout


@without_cudnn_attention()
def choose_layout(model: Any, d2e: D2ESection, packing: Packing = "auto", attention: str | None = None) -> Layout:
    """Choose the layout of a model's batches and set its attention implementation accordingly.

    The model has its adapter and precision of training, and the device that will compute. `auto` chooses
    `shared_batch` if it is exact for the model; `attention` is `BY_BRANCH` (also for None) or one of `DENSE`. Raises
    UserError if the requested packing is not exact for the model or the attention implementation.
    """
    causal = bare_model(model)
    former = causal.config._attn_implementation
    if causal.config.is_encoder_decoder:
        if packing not in ("auto", "batched"):
            raise _inexact(packing, "an encoder sees its whole input at once, so views share no prefix")
        return Layout("encoder_decoder", former)
    through_logits = not _head_is_known(causal)
    if packing == "batched":
        return Layout("batched", former, through_logits=through_logits)
    reason = (
        "its head is not a plain projection"
        if through_logits
        else _structural_reason(causal) or _attention_reason(attention, d2e)
    )
    if reason is None:
        chosen = attention or BY_BRANCH
        reason = _measured_reason(causal, chosen)
        if reason is None:
            return Layout("shared_batch" if packing == "auto" else packing, chosen)
        causal.set_attn_implementation(former)
    if packing != "auto":
        raise _inexact(packing, reason)
    return Layout("batched", former, reason, through_logits)


def takes_packed_rows(model: Any) -> bool:
    """Whether packed rows of a causal model are exact, branch by branch, and `head_of` knows its head.

    Measured once per model; its attention implementation stays unchanged.
    """
    causal = bare_model(model)
    if causal not in _TAKES_PACKED_ROWS:
        former = causal.config._attn_implementation
        _TAKES_PACKED_ROWS[causal] = choose_layout(causal, D2ESection(), attention=BY_BRANCH).packing == "shared_batch"
        causal.set_attn_implementation(former)
    return _TAKES_PACKED_ROWS[causal]


@contextmanager
def computing_on(device: torch.device, model: nn.Module, *, whole: bool = False) -> Iterator[None]:
    """Compute a model's forward, without gradient, on a device that its weights are not on.

    FSDP and DeepSpeed leave weights on the CPU until training begins. A model under FSDP may be larger than the
    device, so unless it is `whole`, a layer is copied there only for its own forward.
    """
    layers = [] if whole else [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    inside = {module for layer in layers for module in layer.modules()}
    kept: dict[nn.Module, tuple[dict[str, Any], dict[str, Any]]] = {}

    def bring(modules: Iterable[nn.Module]) -> None:
        for module in modules:
            kept[module] = module._parameters, module._buffers
            module._parameters, module._buffers = (
                {name: t if t is None else t.detach().to(device) for name, t in tensors.items()}
                for tensors in kept[module]
            )

    def take_back(modules: Iterable[nn.Module]) -> None:
        for module in kept.keys() & set(modules):
            module._parameters, module._buffers = kept.pop(module)

    with ExitStack() as stack:
        if _can_run(model) and next(model.parameters()).device != device:
            for layer in layers:
                before = layer.register_forward_pre_hook(lambda layer, _: bring(layer.modules()))
                after = layer.register_forward_hook(lambda layer, *_: take_back(layer.modules()))
                stack.callback(before.remove)
                stack.callback(after.remove)
            stack.callback(lambda: take_back([*kept]))
            bring(module for module in model.modules() if module not in inside)
        yield


def collator_for(layout: Layout, d2e: D2ESection, config: Any, pad_token_id: int = 0) -> Collator:
    """Return the collator of a layout; the `config` of an encoder-decoder names the first decoder token."""
    start = getattr(config, "decoder_start_token_id", None)
    start = pad_token_id if start is None else start
    return Collator(layout.packing, d2e.views, d2e.view_gradients, pad_token_id, start, d2e.prefers)


def _structural_reason(model: Any) -> str | None:
    """Return why the architecture cannot be packed, or None."""
    name, config = type(model).__name__, model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or []) - _LAYERS_THAT_ATTEND
    if kinds:
        return f"{name} has layers that do not attend ({', '.join(sorted(kinds))}), so branches cannot share a prefix"
    if not model._supports_attention_backend:
        return f"{name} does not take an attention function"
    if getattr(config, "attn_logit_softcapping", None):
        return f"{name} caps its attention scores"
    if getattr(config, "use_bidirectional_attention", False) or not getattr(config, "is_causal", True):
        return f"{name} attends in both directions"
    return None


def _attention_reason(attention: str | None, d2e: D2ESection) -> str | None:
    if attention in DENSE and d2e.view_gradients == "original" and len(d2e.views) > 1:
        return f"attention {attention!r} cannot reuse a prefix without gradient (d2e.view_gradients=original)"
    if attention is None or attention in _TAKE_TREES:
        return None
    why = " (flash-attention has no mask for a tree of branches)" if "flash" in attention else ""
    return f"attention {attention!r} does not support packed rows{why}; {', '.join(_TAKE_TREES)} do"


def _inexact(packing: str, reason: str) -> UserError:
    return UserError(
        f"train.packing={packing}: not exact here ({reason})",
        remedy="use train.packing=auto, which then batches the views, or another model.attention if it is the reason",
    )


def _measured_reason(model: Any, implementation: str) -> str | None:
    """Return how hidden states of a packed row differ from those of separate sequences; None if they agree."""
    register()
    model.set_attn_implementation(implementation)
    if not _can_run(model):
        return None
    sequences = _probe_sequences(model)
    try:
        with torch.no_grad(), evaluating(model):
            separate = [hidden_states(model, **_one_row(sequence, model.device))[0] for sequence in sequences]
            # In one pass, and in two as with `view_gradients: original`, which a dense mask does not support.
            parts = (None, 1) if model.config._attn_implementation == BY_BRANCH else (None,)
            differences: list[float] = []
            for leading in parts:
                row = pack([sequences], leading=leading)
                packed = packed_states(model, row.forest, torch.tensor([row.tokens], device=model.device))
                differences += [
                    _difference(packed[i], expected) for i, expected in zip(row.indices, separate, strict=True)
                ]
    # A layer may raise any of these for arguments that it does not know.
    except (NotImplementedError, TypeError, ValueError, RuntimeError, LookupError, AttributeError) as error:
        if is_out_of_memory(error) or is_device_error(error):
            raise
        return f"{type(model).__name__} cannot run a packed row: {str(error).splitlines()[0]}"
    difference = max(differences)
    if difference <= _tolerance(separate[0]):
        return None
    return f"{type(model).__name__}: hidden states of packed sequences differ by {difference:.0e} from separate ones"


def _head_is_known(model: Any) -> bool:
    """Whether `head_of` gives the logits that the model's own forward gives."""
    if not _can_run(model):
        return True
    inputs = _one_row(_probe_sequences(model)[0], model.device)
    project, _ = head_of(model)
    with torch.no_grad(), evaluating(model):
        logits = model(**inputs, use_cache=False).logits
        return _difference(project(hidden_states(model, **inputs)), logits) <= _tolerance(logits)


def _can_run(model: Any) -> bool:
    """Whether weights have values: under ZeRO-3 they are sharded until DeepSpeed's engine holds the model."""
    return not is_deepspeed_zero3_enabled() and not has_no_data(model)


def has_no_data(model: Any) -> bool:
    """Whether the weights are tensors without data."""
    return any(parameter.is_meta for parameter in model.parameters())


def _probe_sequences(model: Any) -> list[list[int]]:
    """Return three random sequences that branch twice."""
    # Its own generator, so the run's random numbers do not depend on it.
    generator = torch.Generator().manual_seed(0)
    tokens: list[int] = torch.randint(model.config.get_text_config().vocab_size, (30,), generator=generator).tolist()
    prefix, branch = tokens[:9], tokens[:18]
    return [[*branch, *tokens[18:22]], [*branch, *tokens[22:25]], [*prefix, *tokens[25:30]]]


def _one_row(sequence: list[int], device: torch.device) -> dict[str, torch.Tensor]:
    ids = torch.tensor([sequence], device=device)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _difference(tensor: torch.Tensor, reference: torch.Tensor) -> float:
    return ((tensor - reference).norm() / reference.norm()).item()


def _tolerance(tensor: torch.Tensor) -> float:
    # A wrong mask or position changes the first digit; rounding does not.
    whole = tensor.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled(tensor.device.type)
    return 1e-3 if whole else 0.1
