"""Calls of a language model: its head, and the hidden states of rows and of views."""

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from d2e_sft.config.objectives import View, ViewGradients
from d2e_sft.model.attention.registry import DENSE, KeysAndValues, PackedAttention, dense_mask, placeholder_mask
from d2e_sft.model.packing import TokenForest
from d2e_sft.util.errors import UserError

# Cached: unwrapping walks the whole model, and decoding asks at every token.
_TAKEN: WeakKeyDictionary[nn.Module, frozenset[str]] = WeakKeyDictionary()


def _taken(model: nn.Module) -> frozenset[str]:
    """Return the names of the arguments of a model's forward."""
    if model not in _TAKEN:
        _TAKEN[model] = frozenset(inspect.signature(bare_model(model).forward).parameters)
    return _TAKEN[model]


def cache_name(model: nn.Module) -> str:
    """Return what a model's forward calls its keys and values: `cache` since transformers 5.24."""
    return "cache" if "cache" in _taken(model) else "past_key_values"


def last_logits(model: nn.Module, keep: int, **inputs: Any) -> tuple[Tensor, Any]:
    """Return the logits of the last `keep` positions, (rows, keep, V), and the model's output.

    The call goes through the (possibly wrapped) model itself, so the hooks of DDP, FSDP and DeepSpeed fire.
    """
    if "logits_to_keep" in _taken(model):
        inputs["logits_to_keep"] = keep
    output = model(**inputs)
    logits: Tensor = output.logits
    # A model without the argument projects every position, which takes more memory.
    return logits[:, -keep:], output


def head_of(model: Any) -> tuple[Callable[[Tensor], Tensor], bool]:
    """Return the model's map from hidden states to logits, and whether it is linear.

    Includes final soft-capping (Gemma 2), `logit_scale` (Cohere) and `logits_scaling` (Granite). The parameters of a
    head that FSDP2 shards by itself must be gathered.
    """
    head = model.get_output_embeddings()
    # accelerate shards the head together with the final norm. The hooks of FSDP2 would take the backward of a chunk
    # for that of the step, and free the norm's weights before its own backward reads them.
    call = head.forward if is_fully_sharded(head) else head
    config = model.config.get_text_config()
    cap = getattr(config, "final_logit_softcapping", None)
    scale = getattr(config, "logit_scale", None) or 1 / (getattr(config, "logits_scaling", None) or 1)

    def project(hidden: Tensor) -> Tensor:
        # Mamba's states are float32 whatever its weights are.
        half = head.weight.dtype in (torch.bfloat16, torch.float16)
        logits: Tensor = call(hidden.to(head.weight.dtype) if half or call is not head else hidden)
        if scale != 1:
            logits = logits * scale
        return logits if cap is None else torch.tanh(logits / cap) * cap

    return project, cap is None and getattr(head, "bias", None) is None


def hidden_states(model: Any, **inputs: Any) -> Tensor:
    """Return the hidden states (rows, L, H) of a causal language model before its head."""
    backbone = getattr(model, model.base_model_prefix, None) or model.model  # the prefix of Llama 4 is of the whole
    output: Tensor = backbone(**inputs, use_cache=False)[0]
    return output


def packed_inputs(
    model: Any,
    forest: TokenForest,
    input_ids: Tensor,
    part: tuple[int, int],
    *,
    remember: KeysAndValues | None = None,
    recall: KeysAndValues | None = None,
) -> dict[str, Any]:
    """Return the arguments of a model's forward for a part [start, end) of a packed row."""
    (start, end), device = part, input_ids.device
    plan = forest.plan(start, end)
    inputs = {
        "input_ids": input_ids[:, start:end],
        "position_ids": forest.position_ids[None, start:end].to(device),
    }
    config = model.config.get_text_config()
    implementation = config._attn_implementation
    if implementation in DENSE:
        mask = dense_mask(plan, config, implementation, dtype=model.dtype, device=device)
        return {**inputs, "attention_mask": mask}
    packed = PackedAttention(plan, remember=remember, recall=recall)
    return {**inputs, "attention_mask": placeholder_mask(device), "packed": packed}


def packed_states(model: Any, forest: TokenForest, input_ids: Tensor) -> Tensor:
    """Return the hidden states (T, H) of a packed row; those after its lead carry no gradient."""
    if forest.lead == forest.length:
        return hidden_states(model, **packed_inputs(model, forest, input_ids, (0, forest.length)))[0]
    shared: KeysAndValues = {}
    lead = packed_inputs(model, forest, input_ids, (0, forest.lead), remember=shared)
    states = hidden_states(model, **lead)[0]
    # Gradient checkpointing runs the layers again in the backward, when nothing is to be remembered any more.
    lead["packed"].remember = None
    with torch.no_grad():
        part = packed_inputs(model, forest, input_ids, (forest.lead, forest.length), recall=shared)
        rest = hidden_states(model, **part)[0]
    return torch.cat([states, rest])


def states_of_views(
    model: Any, views: Sequence[View], gradients: ViewGradients, inputs: dict[str, Any]
) -> dict[View, Tensor]:
    """Return the hidden states (N, H) of each view of a batch, by a bare causal language model."""
    if "forest" in inputs:
        forest, answer_index = inputs["forest"], inputs["answer_index"]
        row = packed_states(model, forest, inputs["input_ids"])
        # The first answer token of another view may be predicted by a token that the original shares.
        rest = row if gradients == "all" else row.detach()
        return dict(zip(views, (row[answer_index[0]], *rest[answer_index[1:]].unbind()), strict=True))
    return by_view(views, gradients, inputs, lambda **rows: hidden_states(model, **rows))


def by_view(
    views: Sequence[View], gradients: ViewGradients, inputs: dict[str, Any], run: Callable[..., Tensor]
) -> dict[View, Tensor]:
    """Return (N, H or V) of each view by `run`, which maps the rows of a batch (R, L) to (R, L, H or V).

    The views of an encoder-decoder model differ in the input of the encoder; its decoder sees only the answers.
    """
    index, samples = inputs["answer_index"], inputs["samples"]
    rows = {name: value for name, value in inputs.items() if name not in ("answer_index", "samples")}
    if gradients == "all" or len(views) == 1:
        return dict(zip(views, run(**rows).flatten(0, 1)[index].unbind(), strict=True))
    with torch.no_grad():
        detached = run(**{name: value[samples:] for name, value in rows.items()})
        start = samples * detached.shape[1]
        detached = detached.flatten(0, 1)[(index[1:] - start).clamp(min=0)]
    original = run(**{name: value[:samples] for name, value in rows.items()}).flatten(0, 1)
    # A view that equals the original one has its values, without its gradient.
    equal = original.detach()[index[1:].clamp(max=start - 1)]
    detached = torch.where((index[1:] >= start)[..., None], detached, equal)
    return dict(zip(views, (original[index[0]], *detached.unbind()), strict=True))


def enable_checkpointing(model: Any) -> None:
    """Turn gradient checkpointing on as the trainer does; transformers 5.17 has only the former name."""
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable()


def checkpointing_argument() -> str:
    """Return the name of gradient checkpointing in TrainingArguments, which changed after transformers 5.17."""
    from transformers import TrainingArguments

    known = TrainingArguments.__dataclass_fields__
    return "activation_checkpointing" if "activation_checkpointing" in known else "gradient_checkpointing"


def may_leave_parameters_out(model: nn.Module) -> bool:
    """Whether some trained weights may have no part in a forward pass on text, so that DDP must look for them.

    Such are experts, layers that are skipped at random, and parts for images or sound.
    """
    config: Any = getattr(model, "config", None)
    if config is None or config.get_text_config() is not config:
        return True
    skips = any(getattr(config, name, 0) for name in ("layerdrop", "encoder_layerdrop", "decoder_layerdrop"))
    return skips or any("expert" in name for name, parameter in model.named_parameters() if parameter.requires_grad)


def bare_model(model: nn.Module) -> Any:
    """Return the transformers model inside its distributed wrapper and its adapter."""
    bare = unwrapped(model)
    get_base_model = getattr(bare, "get_base_model", None)  # peft
    return get_base_model() if callable(get_base_model) else bare


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Put a model in eval mode, without dropout, for the duration of the block."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def expect_of_transformers(name: str, value: Any, attribute: str) -> None:
    """Raise UserError unless what was given as a model or tokenizer has the attribute of one."""
    if not hasattr(value, attribute):
        raise UserError(
            f"{name}: got a {type(value).__name__}; expected one from transformers",
            remedy="load_model(NAME) gives both, as .model and .tokenizer",
        )


def is_fully_sharded(module: Any) -> bool:
    """Whether torch's `fully_shard` (FSDP2) holds the parameters of this module."""
    fsdp = sys.modules.get("torch.distributed.fsdp")  # which takes long to import
    return fsdp is not None and isinstance(module, fsdp.FSDPModule)


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside its distributed wrapper (DDP, FSDP, DeepSpeed), if it has one."""
    if not hasattr(model, "module"):  # saves accelerate's import of DeepSpeed, which warns if there is no GPU
        return model
    from accelerate.utils import extract_model_from_parallel

    bare: nn.Module = extract_model_from_parallel(model)
    return bare
