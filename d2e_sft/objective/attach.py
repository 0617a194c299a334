"""The objective inside a language model's own forward.

There, the hooks of DDP, FSDP and DeepSpeed see one forward a step, only the hidden states at answer positions reach
the head, and no logits leave the model.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from d2e_sft.config.objectives import View
from d2e_sft.config.recipe import D2ESection
from d2e_sft.model.attention.registry import KeysAndValues
from d2e_sft.model.forward import bare_model, head_of, hidden_states, packed_inputs
from d2e_sft.model.packing import TokenForest
from d2e_sft.objective.loss import CHUNK_ELEMENTS, D2ELoss, chunked_d2e_loss, d2e_loss, debias
from d2e_sft.objective.terms import IN_CLOSED_FORM, sum_logits, sum_states


def attach_objective(model: nn.Module, d2e: D2ESection, *, through_logits: bool = False) -> None:
    """Let the model's forward, given `targets`, return the objective in place of logits.

    The forward then takes the tensors of a collator with `targets` (N,) for `labels`, and `view_accuracy` as
    `chunked_d2e_loss` does, and returns a dict of sums over answer tokens: `loss`, which carries gradient, each of the
    objective's terms, and the counts `correct` (by the logits that the model is decoded by), `plain_correct` (of the
    original view alone) and `imagined_correct`, the last two where they were asked for. With `hits_of` it
    returns what `view_hits` does. Without `targets` it is what it was.

    Args:
        through_logits: take the logits that the model's own forward gives, for a head that `head_of` does not know.
    """
    causal = bare_model(model)
    plain = causal.forward
    own_logits = through_logits or causal.config.is_encoder_decoder

    def forward(
        *args: Any,
        targets: Tensor | None = None,
        view_accuracy: bool = True,
        hits_of: D2ESection | None = None,
        **inputs: Any,
    ) -> Any:
        if targets is None:
            return plain(*args, **inputs)
        # An adapter's wrapper adds every argument it knows as None.
        given = {name: value for name, value in inputs.items() if value is not None}
        if hits_of is not None:
            return view_hits(causal, hits_of, targets, given, plain if own_logits else None)
        if own_logits:
            return _step_through_logits(plain, d2e, targets, given)
        return step_through_states(causal, d2e, targets, given, view_accuracy=view_accuracy)

    # generate() reads from the signature what a model takes.
    signature = inspect.signature(plain)
    defaults = {"targets": None, "view_accuracy": True, "hits_of": None}
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value) for name, value in defaults.items()
    ]
    named = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    rest = [p for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD]
    forward.__signature__ = signature.replace(parameters=[*named, *added, *rest])  # type: ignore[attr-defined]
    causal.forward = forward


def step_through_states(
    model: Any, d2e: D2ESection, targets: Tensor, inputs: dict[str, Any], *, view_accuracy: bool = False
) -> dict[str, Tensor]:
    """The objective on one batch of a collator, from hidden states at answer positions; see `attach_objective`.

    Args:
        model: a bare causal language model.
        targets: (N,) the answer tokens.
        inputs: the collator's `answer_index`, `content` where it has it, and what the model needs beside them.
        view_accuracy: as for `chunked_d2e_loss`.
    """
    content = _content(targets, inputs)
    states = view_states(model, d2e, inputs)
    return loss_of_states(model, d2e, targets, states, content, view_accuracy=view_accuracy)


def loss_of_states(
    model: Any,
    d2e: D2ESection,
    targets: Tensor,
    states: dict[View, Tensor],
    content: Tensor | None = None,
    *,
    view_accuracy: bool = False,
) -> dict[str, Tensor]:
    """The objective from the views' hidden states (N, H) that predict the answer tokens (N,).

    Args:
        content: (N,) bool, see `objectives`; None for all.
    """
    project, linear = head_of(model)
    head = model.get_output_embeddings()
    rows = _chunk_rows(model)
    cut: dict[str, Any] = {
        "parameters": list(head.parameters()),
        "chunk_rows": rows,
        "chunks": _chunks_anywhere(head, -(-len(targets) // rows), targets.device),
    }
    if d2e.objective not in IN_CLOSED_FORM:
        given = torch.ones_like(targets, dtype=torch.bool) if content is None else content
        return sum_states(d2e, states, targets, given, project, **cut)
    result = chunked_d2e_loss(
        states["original"],
        targets,
        project,
        imagined=states.get("imagined"),
        refined=states.get("refined"),
        **_loss_options(d2e),
        linear=linear,
        others_detached=d2e.view_gradients == "original",
        view_accuracy=view_accuracy,
        **cut,
    )
    return _named(result)


def view_hits(
    model: Any, views: D2ESection, targets: Tensor, inputs: dict[str, Any], plain: Callable[..., Any] | None = None
) -> dict[str, Tensor]:
    """Which answer tokens are the likeliest ones, (N,) bool: `plain`, `debiased`, and `imagined` without the context.

    Args:
        model: a bare language model.
        views: an objective with an original and an imagined view, and α.
        targets: (N,) the answer tokens.
        inputs: of a collator for these views.
        plain: the model's own forward, for one whose logits are taken from there.
    """
    inputs.pop("content", None)
    if plain is not None:
        logits = _by_view(views, inputs, lambda **rows: plain(**rows, use_cache=False).logits)
        return _hits_of_logits(views, targets, logits)
    project, _ = head_of(model)
    states = view_states(model, views, inputs)
    rows = _chunk_rows(model)
    parts = [slice(start, start + rows) for start in range(0, len(targets), rows)]
    found = [
        _hits_of_logits(views, targets[part], {name: project(state[part]) for name, state in states.items()})
        for part in parts
    ]
    return {name: torch.cat([of_part[name] for of_part in found]) for name in found[0]}


def _hits_of_logits(views: D2ESection, targets: Tensor, logits: dict[View, Tensor]) -> dict[str, Tensor]:
    original, imagined = logits["original"].float(), logits["imagined"].float()
    debiased = debias(original, imagined, views.effective_alpha)
    named = {"plain": original, "debiased": debiased, "imagined": imagined}
    return {name: one.argmax(dim=-1) == targets for name, one in named.items()}


def _chunk_rows(model: Any) -> int:
    """Answer tokens whose logits are in memory together."""
    head = model.get_output_embeddings()
    vocabulary = getattr(head, "out_features", None) or model.config.get_text_config().vocab_size
    return max(1, CHUNK_ELEMENTS // int(vocabulary))


def view_states(model: Any, d2e: D2ESection, inputs: dict[str, Any]) -> dict[View, Tensor]:
    """Hidden states (N, H) of each view that predict the answer tokens, from a collator's batch."""
    if "forest" in inputs:
        return _packed_states(model, d2e, inputs)
    return _by_view(d2e, inputs, lambda **rows: hidden_states(model, **rows))


def _packed_states(model: Any, d2e: D2ESection, inputs: dict[str, Any]) -> dict[View, Tensor]:
    """Hidden states (N, H) of each view at the positions that predict the answer, from one packed row."""
    forest: TokenForest = inputs["forest"]
    tokens, answer_index = inputs["input_ids"], inputs["answer_index"]
    if forest.lead == forest.length:
        row = hidden_states(model, **packed_inputs(model, forest, tokens, 0, forest.length))[0]
        return dict(zip(d2e.views, row[answer_index].unbind(), strict=True))
    shared: KeysAndValues = {}
    lead = packed_inputs(model, forest, tokens, 0, forest.lead, remember=shared)
    original = hidden_states(model, **lead)[0]
    # Gradient checkpointing runs the layers again in the backward, when nothing is to be remembered any more.
    lead["packed"].remember = None
    with torch.no_grad():
        rest = hidden_states(model, **packed_inputs(model, forest, tokens, forest.lead, forest.length, recall=shared))[
            0
        ]
        # An answer's first token may be predicted by a token that both parts share.
        row = torch.cat([original.detach(), rest])
        others = row[answer_index[1:]].unbind()
    return dict(zip(d2e.views, (original[answer_index[0]], *others), strict=True))


def _by_view(d2e: D2ESection, inputs: dict[str, Any], run: Callable[..., Tensor]) -> dict[View, Tensor]:
    """What a model gives for each view at the positions that predict the answer, from one row a view and sample.

    Of an encoder-decoder model the views differ in the encoder's input; its decoder sees the answers alone.

    Args:
        run: from inputs to hidden states or logits, (rows, L, H or V).
    """
    own = {name: value for name, value in inputs.items() if name not in ("answer_index", "decoder_input_ids")}
    views, batch = len(d2e.views), len(inputs["input_ids"]) // len(d2e.views)

    def of_views(first: int, last: int) -> tuple[Tensor, ...]:
        rows = {name: value[first * batch : last * batch] for name, value in own.items()}
        if "decoder_input_ids" in inputs:
            rows["decoder_input_ids"] = inputs["decoder_input_ids"].repeat(last - first, 1)
        flat = run(**rows).flatten(0, 1)
        start = first * (len(flat) // (last - first))
        return flat[inputs["answer_index"][first:last] - start].unbind()

    if d2e.view_gradients == "all" or views == 1:
        parts = of_views(0, views)
    else:
        with torch.no_grad():
            others = of_views(1, views)
        parts = (*of_views(0, 1), *others)
    return dict(zip(d2e.views, parts, strict=True))


def _step_through_logits(plain: Any, d2e: D2ESection, targets: Tensor, inputs: dict[str, Any]) -> dict[str, Tensor]:
    """The objective from logits of the model's own forward."""
    content = _content(targets, inputs)
    logits = _by_view(d2e, inputs, lambda **rows: plain(**rows, use_cache=False).logits)
    if d2e.objective not in IN_CLOSED_FORM:
        return sum_logits(d2e, logits, targets, content)
    imagined, refined = logits.get("imagined"), logits.get("refined")
    return _named(d2e_loss(logits["original"], targets, imagined=imagined, refined=refined, **_loss_options(d2e)))


def _content(targets: Tensor, inputs: dict[str, Any]) -> Tensor:
    """Which answer tokens the response form leaves open; all where the batch does not say."""
    content: Tensor | None = inputs.pop("content", None)
    return torch.ones_like(targets, dtype=torch.bool) if content is None else content


def _named(loss: D2ELoss) -> dict[str, Tensor]:
    return {name: value for name, value in vars(loss).items() if value is not None}


def _loss_options(d2e: D2ESection) -> dict[str, Any]:
    """What both forms of the loss take from the recipe."""
    return {"alpha": d2e.effective_alpha, "kl_weight": d2e.kl_weight, "kl_direction": d2e.kl_direction}


def _chunks_anywhere(head: Any, chunks: int, device: torch.device) -> int | None:
    """The largest number of chunks on any process, where the head is gathered from all of them (ZeRO-3); else None."""
    if not hasattr(getattr(head, "weight", None), "ds_id"):
        return None
    most = torch.tensor(chunks, device=device)
    torch.distributed.all_reduce(most, op=torch.distributed.ReduceOp.MAX)
    return int(most)
