"""The objective inside a language model's own forward, so DDP, FSDP and DeepSpeed see one forward per step.

The model computes it only for the duration of a call, and is otherwise as it was. Only the hidden states at answer
positions reach the head, and no logits leave the model.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from d2e_sft.config.objectives import View
from d2e_sft.config.recipe import D2ESection, Precision
from d2e_sft.model.device import autocast, without_cudnn_attention
from d2e_sft.model.forward import bare_model, by_view, head_of, is_fully_sharded, states_of_views
from d2e_sft.model.packing_support import Layout
from d2e_sft.objective.chunks import Head, sum_in_chunks
from d2e_sft.objective.objectives import AnswerTokens, Objective, debias, hits
from d2e_sft.objective.preference import (
    answer_tokens,
    log_probabilities,
    preference_in_chunks,
    preference_sums,
    tokens_in_chunks,
)

ORIGINAL: tuple[View, ...] = ("original",)
CHUNK_ELEMENTS = 2**24  # logits of a view in a chunk: 64 MiB in float32


class AttachedObjective:
    """An objective that a model computes instead of its forward when this object calls it.

    The `layout` is that of the batches; `inputs` are those of `model_inputs`.

    Attributes:
        of_tokens: The objective on logits.
        own_logits: The model's own forward, if its logits are used.
    """

    def __init__(self, model: nn.Module, d2e: D2ESection, layout: Layout) -> None:
        causal = bare_model(model)
        self.of_tokens = objective_of(causal, d2e)
        # As it is before accelerate adds autocast, which would copy all logits to float32.
        self.own_logits = causal.forward if layout.takes_own_logits else None

    def sums(self, model: nn.Module, inputs: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return `Objective.sums`, or with pairs `preference_sums`, by a model, possibly in an engine's wrapper."""
        return _instead_of_forward(model, inputs, partial(step, self.of_tokens, own_logits=self.own_logits))

    def hits(self, model: nn.Module, inputs: Mapping[str, Any], d2e: D2ESection) -> dict[str, Tensor]:
        """Return `view_hits` in the same way."""
        return _instead_of_forward(model, inputs, partial(view_hits, d2e, own_logits=self.own_logits))

    @without_cudnn_attention()
    def backward(
        self, model: nn.Module, inputs: Mapping[str, Any], precision: Precision, device: torch.device
    ) -> None:
        """Add a micro-batch's gradients to the model; the precision is resolved, not `auto`."""
        with autocast(precision, device):
            loss = self.sums(model, inputs)["loss"] / len(inputs["targets"])
        loss.backward()


def _instead_of_forward(
    model: nn.Module, inputs: Mapping[str, Any], compute: Callable[..., dict[str, Tensor]]
) -> dict[str, Tensor]:
    """Call a model whose bare one does `compute(causal, targets, inputs)` instead of its forward.

    The call goes through the wrappers of adapter and engine, whose hooks gather weights and exchange gradients.
    Autocast that accelerate put around the forward is replaced too, so it is the caller's.
    """
    causal = bare_model(model)
    replaced = vars(causal).get("forward")

    def forward(*, targets: Tensor, **inputs: Any) -> dict[str, Tensor]:
        # The wrapper of an adapter adds every argument it knows as None.
        return compute(causal, targets, {name: value for name, value in inputs.items() if value is not None})

    causal.forward = forward
    try:
        sums: dict[str, Tensor] = model(**inputs)
    finally:
        if replaced is None:
            del causal.forward
        else:
            causal.forward = replaced
    return sums


def objective_of(model: Any, d2e: D2ESection) -> Objective:
    """Return the recipe's objective for a bare model."""
    return Objective.of(d2e, model.config.get_text_config().vocab_size)


def step(
    objective: Objective,
    model: Any,
    targets: Tensor,
    inputs: dict[str, Any],
    own_logits: Callable[..., Any] | None = None,
) -> dict[str, Tensor]:
    """Return the sums of the objective on a batch by `model_inputs`, by a bare model."""
    d2e, content = objective.d2e, inputs.pop("content", None)
    content = torch.ones_like(targets, dtype=torch.bool) if content is None else content
    tokens = AnswerTokens(targets, content)
    pairs = inputs.pop("pairs", None)
    if pairs is not None:
        if own_logits is not None:
            logits = _logits_of_views(own_logits, ORIGINAL, "all", inputs)["original"]
            return preference_sums(d2e, pairs, *answer_tokens(logits, pairs.targets))
        state = states_of_views(model, ORIGINAL, "all", inputs)["original"]
        return preference_in_chunks(d2e, chunked_head(model, pairs.targets), state, pairs)
    if own_logits is not None:
        return objective.sums(_logits_of_views(own_logits, d2e.views, d2e.view_gradients, inputs), tokens)
    states = states_of_views(model, d2e.views, d2e.view_gradients, inputs)
    return sum_in_chunks(objective, chunked_head(model, targets), states, tokens)


@torch.no_grad()
def answer_log_probabilities(model: nn.Module, layout: Layout, inputs: dict[str, Any]) -> Tensor:
    """Return the log-probability of each answer of a batch with pairs, (B + R,), by a model without an objective.

    `inputs` are from `model_inputs`.
    """
    causal, pairs = bare_model(model), inputs["pairs"]
    rows = {name: value for name, value in inputs.items() if name not in ("pairs", "targets", "content")}
    if layout.takes_own_logits:
        logits = _logits_of_views(causal.forward, ORIGINAL, "all", rows)["original"]
        log_p, _ = answer_tokens(logits, pairs.targets)
    else:
        state = states_of_views(causal, ORIGINAL, "all", rows)["original"]
        log_p, _ = tokens_in_chunks(chunked_head(causal, pairs.targets), state, pairs.targets)
    return log_probabilities(pairs, log_p)


def view_hits(
    d2e: D2ESection, model: Any, targets: Tensor, inputs: dict[str, Any], own_logits: Callable[..., Any] | None = None
) -> dict[str, Tensor]:
    """Return which answer tokens are the argmax, (N,) bool each: `plain`, `debiased` and (no context) `imagined`.

    `d2e` has an original and an imagined view; other arguments are as for `step`.
    """
    inputs.pop("content", None)
    if own_logits is not None:
        return _hits(d2e, targets, _logits_of_views(own_logits, d2e.views, "all", inputs))
    states = states_of_views(model, d2e.views, "all", inputs)
    head = chunked_head(model, targets)
    parts = head.parts(len(targets))
    logits = ({view: head.project(state[part]) for view, state in states.items()} for part in parts)
    of_parts = [_hits(d2e, targets[part], of_part) for part, of_part in zip(parts, logits, strict=True)]
    return {name: torch.cat([of_part_hits[name] for of_part_hits in of_parts]) for name in of_parts[0]}


def chunked_head(model: Any, targets: Tensor) -> Head:
    """Return the head of a bare model, with chunks that hold `CHUNK_ELEMENTS` logits per view."""
    project, _ = head_of(model)
    embeddings = model.get_output_embeddings()
    if is_fully_sharded(embeddings):
        embeddings.unshard()  # at once, if the final norm has not gathered them with its own
    vocabulary = getattr(embeddings, "out_features", None) or model.config.get_text_config().vocab_size
    rows = max(1, CHUNK_ELEMENTS // int(vocabulary))
    chunks = None
    if hasattr(getattr(embeddings, "weight", None), "ds_id"):  # ZeRO-3 gathers the head from all processes
        most = torch.tensor(-(-len(targets) // rows), device=targets.device)
        torch.distributed.all_reduce(most, op=torch.distributed.ReduceOp.MAX)
        chunks = int(most)
    return Head(project, list(embeddings.parameters()), rows, chunks)


def _logits_of_views(forward: Callable[..., Any], views: Any, gradients: Any, inputs: dict[str, Any]) -> Any:
    return by_view(views, gradients, inputs, lambda **rows: forward(**rows, use_cache=False).logits)


def _hits(d2e: D2ESection, targets: Tensor, logits: dict[View, Tensor]) -> dict[str, Tensor]:
    original, imagined = logits["original"].float(), logits["imagined"].float()
    by_name = {"plain": original, "debiased": debias(original, imagined, d2e.effective_alpha), "imagined": imagined}
    return {name: hits(of_view, targets) for name, of_view in by_name.items()}
