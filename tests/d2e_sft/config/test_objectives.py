"""What a recipe says of an objective: its views, its α in training and in decoding, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from d2e_sft.config.objectives import OBJECTIVES
from d2e_sft.config.recipe import D2ESection, load_recipe
from tests.naive import CONFIGS


@pytest.mark.parametrize(
    ("options", "views", "alpha"),
    [
        ({"objective": "sft"}, "o", 0),
        ({"objective": "d2e"}, "oir", 0.5),
        ({"debias": False}, "or", 0),
        ({"distill": False}, "oi", 0.5),
        ({"debias": False, "distill": False}, "o", 0),
        ({"alpha": 0, "kl_weight": 0}, "o", 0),
        ({"objective": "teacher"}, "or", 0),
        ({"objective": "teacher", "kl_weight": 0}, "or", 0),
        ({"objective": "teacher", "debias": True, "alpha": 0.2}, "oir", 0.2),
        ({"objective": "prefer"}, "o", 0),
        ({"objective": "mine.losses:best"}, "oi", 0),
        ({"objective": "mine:best", "own_views": ["original", "refined"], "debias": True}, "or", 0.5),
    ],
)
def test_views_and_the_ratio_of_training_and_decoding(options: dict[str, Any], views: str, alpha: float) -> None:
    d2e = D2ESection(**options)
    assert "".join(view[0] for view in d2e.views) == views
    assert d2e.effective_alpha == alpha


OTHER_VALUES: dict[str, Any] = {
    "alpha": 0.7, "debias": False, "distill": False, "kl_weight": 0.3, "kl_direction": "refined_original",
    "view_gradients": "original", "own_views": ["original", "refined"], "prefer_form": "orpo", "prefer_beta": 0.3,
    "prefer_gamma": 0.3, "prefer_reference": "other", "sft_weight": 0.3,
}  # fmt: skip


@pytest.mark.parametrize("option", sorted(set(D2ESection.model_fields) - {"objective"}))
def test_each_option_decides_the_training_of_some_objective(option: str) -> None:
    """Otherwise a sweep over it would train once; an objective's own option belongs into its `options`."""
    changed = []
    for name in [*OBJECTIVES, "mine:best"]:
        try:
            other = D2ESection(objective=name, **{option: OTHER_VALUES[option]})
        except ValidationError:
            continue
        changed.append(other.of_training() != D2ESection(objective=name).of_training())
    assert any(changed)


def test_every_objective_is_compared_with_its_naive_form() -> None:
    compared = {config.objective for config in CONFIGS.values()}
    assert set(OBJECTIVES) == compared | {"prefer"}, "pairs are compared in test_preference"


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("more", ["d2e: {alpha: 0.3}"])
def test_a_saved_recipe_repeats_the_run_and_takes_the_defaults_of_another_objective(
    recipe_file: Path, more: str, objective: str
) -> None:
    recipe, saved = load_recipe(recipe_file, [f"d2e.objective={objective}"]), recipe_file.parent / "run"
    recipe.save(saved)
    assert load_recipe(saved / "recipe.yaml") == recipe
    assert "kl_direction" in (saved / "recipe.yaml").read_text(), "defaults are written too"
    if objective in ("d2e", "teacher"):
        for other in OBJECTIVES:
            changed = load_recipe(saved / "recipe.yaml", [f"d2e.objective={other}"])
            assert changed.d2e == D2ESection(objective=other, alpha=0.3), other


@pytest.mark.parametrize("more", ["d2e: {distill: false, view_gradients: original}"])
def test_what_a_recipe_says_against_its_objectives_defaults_holds_for_another_objective(
    recipe_file: Path, more: str
) -> None:
    d2e = load_recipe(recipe_file, ["d2e.objective=mine:loss"]).d2e
    assert (d2e.debias, d2e.distill, d2e.view_gradients) == (False, False, "original")


@pytest.mark.parametrize(
    "more", ["d2e: {bias_model: null, product_weight: 1.0, imagined_weight: 1.0, alpha_weight: agreement}"]
)
def test_keys_that_an_older_run_spells_out_at_their_defaults_are_ignored(recipe_file: Path, more: str) -> None:
    assert load_recipe(recipe_file).d2e == D2ESection()
