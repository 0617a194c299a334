"""The objective inside a language model's own forward.

There, the hooks of DDP, FSDP and DeepSpeed see one forward a step, only the hidden states at answer positions reach
the head, and no logits leave the model.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from d2e_sft.config.objectives import View, ViewGradients, spec_of
from d2e_sft.config.recipe import D2ESection
from d2e_sft.model.attention.registry import KeysAndValues
from d2e_sft.model.forward import bare_model, head_of, hidden_states, packed_inputs
from d2e_sft.model.packing import TokenForest
from d2e_sft.objective.chunks import Project
from d2e_sft.objective.loss import CHUNK_ELEMENTS, D2ELoss, chunked_d2e_loss, d2e_loss, debias
from d2e_sft.objective.terms import IN_CLOSED_FORM, Terms, sum_logits, sum_states
from d2e_sft.util.errors import UserError

STATES = "{}_states"  # of a frozen view, in a batch


@dataclass(frozen=True)
class Objective:
    """What a model is trained by.

    Attributes:
        terms: None where the loss has a closed form.
        heads: of frozen views.
    """

    d2e: D2ESection
    terms: Terms | None
    heads: Mapping[str, Project]

    @classmethod
    def of(cls, model: Any, d2e: D2ESection, *, own_logits: bool = False) -> Self:
        """The recipe's objective for a bare model.

        Args:
            own_logits: its logits are its own forward's.

        Raises:
            UserError: as `Terms.of`, or an objective with frozen views on a model with logits of its own.
        """
        if d2e.objective in IN_CLOSED_FORM:
            return cls(d2e, None, {})
        terms = Terms.of(d2e, model.config.get_text_config().vocab_size)
        return cls(d2e, terms, _frozen_heads(model, d2e, own_logits=own_logits))

    @property
    def weights(self) -> Mapping[str, float]:
        """The names of its terms, and how often each counts in the loss."""
        return {"ce": 1.0, "kl": self.d2e.kl_weight} if self.terms is None else self.terms.weights


def attach_objective(model: nn.Module, d2e: D2ESection, *, through_logits: bool = False) -> Objective:
    """Let the model's forward, given `targets`, return the objective in place of logits.

    The forward then takes the tensors of a collator with `targets` (N,) for `labels`, and `view_accuracy` as
    `chunked_d2e_loss` does, and returns a dict of sums over answer tokens: `loss`, which carries gradient, each of the
    objective's terms, and the counts `correct` (by the logits that the model is decoded by), `plain_correct` (of the
    original view alone) and `imagined_correct`, the last two where they were asked for. With `hits_of` it
    returns what `view_hits` does. Without `targets` it is what it was.

    The head as it is now is kept for frozen views, whose hidden states a batch brings along (see `frozen`).

    Args:
        through_logits: take the logits that the model's own forward gives, for a head that `head_of` does not know.

    Raises:
        UserError: as `Objective.of`.
    """
    causal = bare_model(model)
    plain = causal.forward
    own_logits = through_logits or causal.config.is_encoder_decoder
    objective = Objective.of(causal, d2e, own_logits=own_logits)

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
            return _step_through_logits(plain, objective, targets, given)
        return step_through_states(causal, objective, targets, given, view_accuracy=view_accuracy)

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
    return objective


def step_through_states(
    model: Any, objective: Objective, targets: Tensor, inputs: dict[str, Any], *, view_accuracy: bool = False
) -> dict[str, Tensor]:
    """The objective on one batch of a collator, from hidden states at answer positions; see `attach_objective`.

    Args:
        model: a bare causal language model.
        targets: (N,) the answer tokens.
        inputs: the collator's `answer_index`, `content` where it has it, and what the model needs beside them,
            with the hidden states of frozen views.
        view_accuracy: as for `chunked_d2e_loss`.
    """
    d2e, content = objective.d2e, _content(objective.d2e, targets, inputs)
    weights = inputs.pop("weights", None)
    frozen = {view: inputs.pop(STATES.format(view)) for view in d2e.frozen_views}
    states = states_of_views(model, d2e.step_views, d2e.view_gradients, inputs)
    given = {**states, **frozen}
    return loss_of_states(model, objective, targets, given, content, weights, view_accuracy=view_accuracy)


def states_of_views(
    model: Any, views: Sequence[View], gradients: ViewGradients, inputs: dict[str, Any]
) -> dict[View, Tensor]:
    """Hidden states (N, H) of each view at the positions that predict the answer.

    Args:
        views: those of the collator's batch, in its order.
        gradients: of which views they carry gradient.
        inputs: the batch without its answers.
    """
    if "forest" in inputs:
        return _packed_states(model, views, inputs)
    return _by_view(views, gradients, inputs, lambda **rows: hidden_states(model, **rows))


def loss_of_states(
    model: Any,
    objective: Objective,
    targets: Tensor,
    states: dict[View, Tensor],
    content: Tensor | None = None,
    weights: Tensor | None = None,
    *,
    view_accuracy: bool = False,
) -> dict[str, Tensor]:
    """The objective from the views' hidden states (N, H) that predict the answer tokens (N,).

    Args:
        content: (N,) bool, see `objectives`; None for all.
        weights: (N,) how often each token's loss counts; None for once.
    """
    project, linear = head_of(model)
    head = model.get_output_embeddings()
    rows = _chunk_rows(model)
    cut: dict[str, Any] = {
        "parameters": list(head.parameters()),
        "chunk_rows": rows,
        "chunks": _chunks_anywhere(head, -(-len(targets) // rows), targets.device),
    }
    d2e = objective.d2e
    if objective.terms is not None:
        given = torch.ones_like(targets, dtype=torch.bool) if content is None else content
        return sum_states(objective.terms, states, targets, given, project, weights, heads=objective.heads, **cut)
    result = chunked_d2e_loss(
        states["original"],
        targets,
        project,
        imagined=states.get("imagined"),
        refined=states.get("refined"),
        **_loss_options(d2e),
        linear=linear,
        others_detached=d2e.view_gradients == "original",
        token_weights=weights,
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
    inputs.pop("weights", None)
    if plain is not None:
        logits = _by_view(views.views, "all", inputs, lambda **rows: plain(**rows, use_cache=False).logits)
        return _hits_of_logits(views, targets, logits)
    project, _ = head_of(model)
    states = states_of_views(model, views.views, "all", inputs)
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


def _packed_states(model: Any, views: Sequence[View], inputs: dict[str, Any]) -> dict[View, Tensor]:
    """Hidden states (N, H) of each view at the positions that predict the answer, from one packed row."""
    forest: TokenForest = inputs["forest"]
    tokens, answer_index = inputs["input_ids"], inputs["answer_index"]
    if forest.lead == forest.length:
        row = hidden_states(model, **packed_inputs(model, forest, tokens, 0, forest.length))[0]
        return dict(zip(views, row[answer_index].unbind(), strict=True))
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
    return dict(zip(views, (original[answer_index[0]], *others), strict=True))


def _by_view(
    views: Sequence[View], gradients: ViewGradients, inputs: dict[str, Any], run: Callable[..., Tensor]
) -> dict[View, Tensor]:
    """What a model gives for each view at the positions that predict the answer, from one row a view and sample.

    Of an encoder-decoder model the views differ in the encoder's input; its decoder sees the answers alone.

    Args:
        run: from inputs to hidden states or logits, (rows, L, H or V).
    """
    own = {name: value for name, value in inputs.items() if name not in ("answer_index", "decoder_input_ids")}
    batch = len(inputs["input_ids"]) // len(views)

    def of_views(first: int, last: int) -> tuple[Tensor, ...]:
        rows = {name: value[first * batch : last * batch] for name, value in own.items()}
        if "decoder_input_ids" in inputs:
            rows["decoder_input_ids"] = inputs["decoder_input_ids"].repeat(last - first, 1)
        flat = run(**rows).flatten(0, 1)
        start = first * (len(flat) // (last - first))
        return flat[inputs["answer_index"][first:last] - start].unbind()

    if gradients == "all" or len(views) == 1:
        parts = of_views(0, len(views))
    else:
        with torch.no_grad():
            others = of_views(1, len(views))
        parts = (*of_views(0, 1), *others)
    return dict(zip(views, parts, strict=True))


def _step_through_logits(
    plain: Any, objective: Objective, targets: Tensor, inputs: dict[str, Any]
) -> dict[str, Tensor]:
    """The objective from logits of the model's own forward."""
    d2e, content = objective.d2e, _content(objective.d2e, targets, inputs)
    weights = inputs.pop("weights", None)
    logits = _by_view(d2e.step_views, d2e.view_gradients, inputs, lambda **rows: plain(**rows, use_cache=False).logits)
    if objective.terms is not None:
        return sum_logits(objective.terms, logits, targets, content, weights)
    others = {"imagined": logits.get("imagined"), "refined": logits.get("refined"), "token_weights": weights}
    return _named(d2e_loss(logits["original"], targets, **others, **_loss_options(d2e)))


def _frozen_heads(model: Any, d2e: D2ESection, *, own_logits: bool) -> dict[str, Project]:
    """Of each frozen view the head as it is now; a copy where it is trained."""
    if not d2e.frozen_views:
        return {}
    if own_logits:
        raise UserError(
            f"d2e.objective={d2e.objective}: keeps hidden states of the model before training, and the logits of "
            f"{type(model).__name__} are its own forward's; expected a causal model with a plain head",
            remedy="use d2e.objective=d2e with d2e.view_gradients=original",
        )
    head = model.get_output_embeddings()
    if any(parameter.requires_grad for parameter in head.parameters()):
        # Weights by hand: a fake tensor (of the estimate of memory) has no data that deepcopy could look at.
        weights = {id(one): nn.Parameter(one.detach().clone(), requires_grad=False) for one in head.parameters()}
        head = copy.deepcopy(head, weights)
    project, _ = head_of(model, head)
    return dict.fromkeys(d2e.frozen_views, project)


def _content(d2e: D2ESection, targets: Tensor, inputs: dict[str, Any]) -> Tensor:
    """Which answer tokens the response form leaves open; all where the batch does not say and it does not matter."""
    content: Tensor | None = inputs.pop("content", None)
    if content is None and spec_of(d2e.objective).reads_content:
        raise ValueError(
            f"d2e.objective={d2e.objective}: the rows have no column `content`, a bool for each token of `answer`, "
            "False where the response form fixes it"
        )
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
