"""Terms of objectives against numbers worked by hand; `test_chunks` and `test_attach` compare all with naive forms."""

from __future__ import annotations

import math

import pytest
import torch

from d2e_sft.config.objectives import OBJECTIVES
from d2e_sft.config.recipe import D2ESection
from d2e_sft.objective.objectives import FUNCTIONS

LOG = math.log


def logits_of(*probabilities: float) -> torch.Tensor:
    """(1, V) logits of a distribution, shifted as they may be."""
    return torch.tensor([probabilities], dtype=torch.float64).log() + 3.0


def terms(d2e: D2ESection, target: int, **views: torch.Tensor) -> dict[str, float]:
    found = FUNCTIONS[d2e.objective](views, torch.tensor([target]), torch.tensor([True]), d2e)  # type: ignore[arg-type]
    assert all(term.shape == (1,) for term in found.values())
    return {name: term.item() for name, term in found.items()}


ORIGINAL, IMAGINED, REFINED = logits_of(0.5, 0.25, 0.25), logits_of(0.1, 0.8, 0.1), logits_of(0.75, 0.125, 0.125)


def test_every_objective_of_a_recipe_has_its_function() -> None:
    assert FUNCTIONS.keys() == OBJECTIVES.keys()


def test_d2e_subtracts_the_imagined_view_and_adds_the_divergence_to_the_refined_one() -> None:
    # α = 0.5; o − α·im = (log 4, log 2, log 2) and r − α·im = (log 6, 0, 0): p = (½, ¼, ¼), q = (¾, ⅛, ⅛).
    imagined = torch.tensor([[2.0, -4.0, 6.0]])
    original = torch.tensor([[LOG(4) + 1.0, LOG(2) - 2.0, LOG(2) + 3.0]])
    refined = torch.tensor([[LOG(6) + 1.0, -2.0, 3.0]])
    given = {"original": original, "imagined": imagined, "refined": refined}
    kl = 0.5 * LOG(0.5 / 0.75) + 2 * 0.25 * LOG(0.25 / 0.125)
    assert terms(D2ESection(), 1, **given) == pytest.approx({"ce": LOG(4), "kl": kl}, abs=1e-6)
    other = 0.75 * LOG(1.5) + 2 * 0.125 * LOG(0.5)
    d2e = D2ESection(kl_direction="refined_original")
    assert terms(d2e, 1, **given) == pytest.approx({"ce": LOG(4), "kl": other}, abs=1e-6)


def test_the_teacher_is_the_refined_view_and_is_not_drawn_to_its_pupil() -> None:
    kl = 0.75 * LOG(1.5) + 2 * 0.125 * LOG(0.5)  # KL(refined ‖ original)
    found = terms(D2ESection(objective="teacher"), 0, original=ORIGINAL, refined=REFINED)
    assert found == pytest.approx({"ce": LOG(2), "refined_ce": -LOG(0.75), "kl": kl})
    refined = REFINED.clone().requires_grad_()
    given = {"original": ORIGINAL, "refined": refined}
    term = FUNCTIONS["teacher"](given, torch.tensor([0]), torch.tensor([True]), D2ESection(objective="teacher"))  # type: ignore[arg-type]
    assert (term["refined_ce"].requires_grad, term["kl"].requires_grad) == (True, False)
