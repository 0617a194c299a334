"""Sums of any objective's terms: chunk by chunk, they and their gradients are those of whole logits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from d2e_sft.config.recipe import D2ESection
from d2e_sft.objective.loss import chunked_d2e_loss
from d2e_sft.objective.terms import Terms, sum_logits, sum_states
from d2e_sft.util.errors import UserError
from tests.naive import naive_loss, naive_terms

ROWS, WIDTH, VOCABULARY = 13, 8, 50
CONFIGS = {
    "sft": D2ESection(objective="sft"),
    "d2e": D2ESection(kl_weight=0.3, alpha=0.7),
    "other-kl": D2ESection(kl_direction="refined_original", kl_weight=0.3),
    "original-gradient": D2ESection(view_gradients="original"),
    "product": D2ESection(objective="product", product_weight=0.6),
    "product-of-trained": D2ESection(objective="product", imagined_weight=0.4),
    "honest": D2ESection(objective="honest"),
    "teacher": D2ESection(objective="teacher", kl_weight=0.3),
    "debiased-teacher": D2ESection(objective="teacher", debias=True),
    "honest-teacher": D2ESection(objective="honest-teacher"),
    "weighted": D2ESection(objective="weighted", alpha=1.3),
    "weighted-jsd": D2ESection(objective="weighted", alpha_weight="jsd", view_gradients="original"),
}


def drawn(config: D2ESection) -> dict[str, Any]:
    """A head's weights, states, targets and content, in float64."""
    torch.manual_seed(0)
    weight = torch.randn(VOCABULARY, WIDTH, dtype=torch.float64, requires_grad=True)
    states = {view: torch.randn(ROWS, WIDTH, dtype=torch.float64, requires_grad=True) for view in config.views}
    return {
        "weight": weight,
        "states": states,
        "targets": torch.randint(VOCABULARY, (ROWS,)),
        "content": torch.arange(ROWS) % 3 > 0,
    }


@pytest.mark.parametrize("cap", [None, 5.0])
@pytest.mark.parametrize(("chunk_rows", "chunks"), [(None, None), (4, None), (4, 9)])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_chunks_sum_to_the_formulas_of_whole_logits(
    config: D2ESection, chunk_rows: int | None, chunks: int | None, cap: float | None
) -> None:
    given = drawn(config)
    weight, states, targets, content = given.values()

    def project(hidden: torch.Tensor) -> torch.Tensor:
        logits = hidden @ weight.T
        return logits if cap is None else cap * torch.tanh(logits / cap)

    logits = {view: project(state) for view, state in states.items()}
    if config.view_gradients == "original":
        logits = {view: z if view == "original" else z.detach() for view, z in logits.items()}
    expected = naive_terms(logits, targets, content, config)
    loss = naive_loss(expected, config)
    terms = Terms.of(config, VOCABULARY)
    ours = sum_states(
        terms, states, targets, content, project, parameters=[weight], chunk_rows=chunk_rows, chunks=chunks
    )
    torch.testing.assert_close(ours["loss"], loss, rtol=1e-12, atol=1e-12)
    for name in terms.weights:
        torch.testing.assert_close(ours[name], expected[name], rtol=1e-11, atol=1e-12, msg=name)
        assert not ours[name].requires_grad
    wanted = [weight, *states.values()]
    theirs = torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True)  # type: ignore[arg-type]
    found = torch.autograd.grad(ours["loss"], wanted, allow_unused=True, materialize_grads=True)
    for one, other in zip(found, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
    whole = sum_logits(terms, logits, targets, content)
    assert whole.keys() == ours.keys()
    for name, value in whole.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-12, atol=1e-12, msg=name)


def test_the_closed_form_of_d2e_is_its_function() -> None:
    config = CONFIGS["d2e"]
    weight, states, targets, content = drawn(config).values()
    options: dict[str, Any] = {"parameters": [weight], "chunk_rows": 4}
    general = sum_states(Terms.of(config, VOCABULARY), states, targets, content, lambda h: h @ weight.T, **options)
    closed = chunked_d2e_loss(
        states["original"], targets, lambda h: h @ weight.T, imagined=states["imagined"], refined=states["refined"],
        alpha=0.7, kl_weight=0.3, **options,
    )  # fmt: skip
    for name, value in general.items():
        torch.testing.assert_close(getattr(closed, name), value, rtol=1e-12, atol=1e-12, msg=name)
    ours, theirs = (torch.autograd.grad(loss, [weight, *states.values()]) for loss in (general["loss"], closed.loss))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_a_view_with_a_head_of_its_own_gives_neither_head_a_gradient() -> None:
    config = D2ESection(objective="frozen", distill=False)
    weight, states, targets, content = drawn(config).values()
    before = torch.randn(VOCABULARY, WIDTH, dtype=torch.float64)
    states["imagined"].requires_grad_(False)
    ours = sum_states(
        Terms.of(config, VOCABULARY), states, targets, content, lambda h: h @ weight.T,
        heads={"imagined": lambda h: h @ before.T}, parameters=[weight], chunk_rows=4,
    )  # fmt: skip
    debiased = states["original"] @ weight.T - 0.5 * (states["imagined"] @ before.T)
    expected = torch.nn.functional.cross_entropy(debiased, targets, reduction="sum")
    torch.testing.assert_close(ours["loss"], expected, rtol=1e-12, atol=1e-12)
    wanted = [weight, states["original"]]
    for one, other in zip(
        torch.autograd.grad(ours["loss"], wanted), torch.autograd.grad(expected, wanted), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_half_precision_states_are_widened_before_the_terms() -> None:
    config = D2ESection(objective="honest")
    targets, content = torch.tensor([0]), torch.tensor([True])
    states = torch.tensor([[9.0, 8.0, -3.0]], dtype=torch.bfloat16, requires_grad=True)
    ours = sum_states(
        Terms.of(config, 3), {"original": states, "imagined": states}, targets, content, lambda hidden: hidden
    )
    exact = torch.nn.functional.cross_entropy(states.detach().double(), targets)
    assert ours["loss"].dtype == torch.float32
    assert ours["loss"].item() == pytest.approx(2 * exact.item(), rel=1e-6)
    (gradient,) = torch.autograd.grad(ours["loss"], states)
    assert gradient.dtype == torch.bfloat16


def test_terms_that_change_are_refused() -> None:
    terms = Terms.of(D2ESection(objective="honest"), VOCABULARY)
    fewer = Terms(terms.d2e, lambda logits, targets, content, options: {"ce": torch.zeros(2)}, terms.weights)
    views: Any = {"original": torch.zeros(2, 3), "imagined": torch.zeros(2, 3)}
    with pytest.raises(UserError, match="returned the terms ce, before that ce, imagined_ce"):
        fewer.sums(views, torch.zeros(2, dtype=torch.long), torch.ones(2, dtype=torch.bool))


@pytest.mark.parametrize(
    ("config", "closed"),
    [
        *((config, False) for config in CONFIGS.values()),
        *((config, True) for config in CONFIGS.values() if config.objective in ("sft", "d2e")),
    ],
)
def test_a_weight_of_two_is_the_token_twice_and_a_weight_of_zero_none(config: D2ESection, closed: bool) -> None:
    times = torch.tensor([0, 1, 2, 1, 3, 1, 0, 1, 1, 2, 1, 1, 1])
    found = []
    for repeated in (False, True):
        weight, states, targets, content = drawn(config).values()
        weights = None if repeated else times.double()
        rows = {view: state.repeat_interleave(times, 0) if repeated else state for view, state in states.items()}
        if repeated:
            targets, content = targets.repeat_interleave(times), content.repeat_interleave(times)

        def project(hidden: torch.Tensor, head: torch.Tensor = weight) -> torch.Tensor:
            return hidden @ head.T

        if closed:
            others = {"imagined": rows.get("imagined"), "refined": rows.get("refined")}
            options: dict[str, Any] = {"alpha": config.effective_alpha, "kl_weight": config.kl_weight}
            options |= {"kl_direction": config.kl_direction, "others_detached": config.view_gradients == "original"}
            sums = vars(
                chunked_d2e_loss(
                    rows["original"], targets, project, parameters=[weight], chunk_rows=4, token_weights=weights,
                    **others, **options,
                )
            )  # fmt: skip
        else:
            terms = Terms.of(config, VOCABULARY)
            sums = sum_states(terms, rows, targets, content, project, weights, parameters=[weight], chunk_rows=4)
        sums["loss"].backward()
        named = {
            name: value for name, value in sums.items() if name not in ("correct", "plain_correct", "imagined_correct")
        }
        found.append((named, weight.grad, states["original"].grad))
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)
