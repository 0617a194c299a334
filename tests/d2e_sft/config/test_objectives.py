"""What a recipe says of an objective: its views, its α in training and in decoding, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from d2e_sft.config.objectives import OBJECTIVES
from d2e_sft.config.recipe import D2ESection, load_recipe
from d2e_sft.util.errors import UserError
from tests.naive import CONFIGS


@pytest.mark.parametrize(
    ("options", "views", "training", "decoding"),
    [
        ({"objective": "sft"}, "o", 0, 0),
        ({"objective": "d2e"}, "oir", 0.5, 0.5),
        ({"debias": False}, "or", 0, 0),
        ({"distill": False}, "oi", 0.5, 0.5),
        ({"debias": False, "distill": False}, "o", 0, 0),
        ({"alpha": 0, "kl_weight": 0}, "o", 0, 0),
        ({"objective": "product"}, "oi", 0, 0),
        ({"objective": "reweight"}, "oi", 0, 0),
        ({"objective": "honest"}, "oi", 0, 0.5),
        ({"objective": "honest", "alpha": 0.2}, "oi", 0, 0.2),
        ({"objective": "teacher"}, "or", 0, 0),
        ({"objective": "teacher", "debias": True}, "oir", 0.5, 0.5),
        ({"objective": "honest-teacher"}, "oir", 0, 0.5),
        ({"bias_model": "base"}, "oir", 0.5, 0.5),
        ({"objective": "product", "bias_model": "base"}, "oi", 0, 0),
        ({"objective": "weighted", "distill": False}, "oi", 0.5, 0.5),
        ({"objective": "mine.losses:best"}, "oi", 0, 0),
        ({"objective": "mine:best", "own_views": ["original", "refined"], "debias": True}, "or", 0.5, 0.5),
    ],
)
def test_views_and_ratios(options: dict[str, Any], views: str, training: float, decoding: float) -> None:
    d2e = D2ESection(**options)
    assert "".join(view[0] for view in d2e.views) == views
    assert (d2e.effective_alpha, d2e.decoding_alpha) == (training, decoding)


OTHER_VALUES: dict[str, Any] = {
    "alpha": 0.7, "debias": False, "distill": False, "bias_model": "base", "kl_weight": 0.3,
    "kl_direction": "refined_original", "view_gradients": "original", "product_weight": 0.3, "imagined_weight": 0.3,
    "alpha_weight": "jsd", "own_views": ["original", "refined"], "prefer_form": "orpo", "prefer_beta": 0.3,
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


def test_a_step_does_not_run_a_frozen_view() -> None:
    d2e = D2ESection(bias_model="base")
    assert (d2e.frozen_views, d2e.step_views) == (("imagined",), ("original", "refined"))
    assert D2ESection().step_views == D2ESection().views


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["objective=prodct"], r"d2e\.objective=prodct: no such objective\. Did you mean 'product'\? Expected one of"),
        (
            ["objective=mine:2nd"],
            r"d2e\.objective=mine:2nd: no such objective.*or your own function as module:function",
        ),
        (["objective=sft", "debias=true"], r"d2e\.debias=true: the objective sft always has debias=false"),
        (["objective=honest", "distill=true"], r"d2e\.distill=true: the objective honest always has distill=false"),
        (["objective=honest", "bias_model=base"], r"d2e\.bias_model=base: the objective honest trains the imagined"),
        (
            ["objective=product", "bias_model=base", "imagined_weight=1"],
            r"expected one of d2e, product, reweight, weighted",
        ),
        (["objective=teacher", "view_gradients=original"], r"the objective teacher trains the other views"),
        (
            ["objective=product", "imagined_weight=0.5", "view_gradients=original"],
            r"the objective product trains the other views",
        ),
        (["objective=a:b", "own_views=[imagined]"], r"d2e\.own_views=\['imagined'\]: expected original first"),
    ],
)
def test_unsupported_options_of_an_objective_are_errors(recipe_file: Path, overrides: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        load_recipe(recipe_file, [f"d2e.{override}" for override in overrides])


@pytest.mark.parametrize(
    ("options", "gradients", "weight"),
    [
        ({"objective": "product"}, "original", 0),  # nothing flows through the other view, so nothing is computed
        ({"objective": "product", "view_gradients": "all"}, "all", 0),
        ({"objective": "reweight"}, "original", 1),
        ({"objective": "product", "imagined_weight": 0.5}, "all", 0.5),
        ({"objective": "honest"}, "all", 1),
        ({"objective": "honest", "imagined_weight": 0, "view_gradients": "original"}, "original", 0),
    ],
)
def test_the_gradients_and_weights_of_the_other_views(options: dict[str, Any], gradients: str, weight: float) -> None:
    d2e = D2ESection(**options)
    assert (d2e.view_gradients, d2e.imagined_weight) == (gradients, weight)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("more", ["d2e: {alpha: 0.3}"])
def test_a_saved_recipe_repeats_the_run_and_takes_the_defaults_of_another_objective(
    recipe_file: Path, more: str, objective: str
) -> None:
    recipe, saved = load_recipe(recipe_file, [f"d2e.objective={objective}"]), recipe_file.parent / "run"
    recipe.save(saved)
    assert load_recipe(saved / "recipe.yaml") == recipe
    assert "kl_direction" in (saved / "recipe.yaml").read_text(), "defaults are written too"
    if objective in ("d2e", "product"):
        for other in OBJECTIVES:
            changed = load_recipe(saved / "recipe.yaml", [f"d2e.objective={other}"])
            assert changed.d2e == D2ESection(objective=other, alpha=0.3), other


@pytest.mark.parametrize("more", ["d2e: {distill: false, view_gradients: original}"])
def test_what_a_recipe_says_against_its_objectives_defaults_holds_for_another_objective(
    recipe_file: Path, more: str
) -> None:
    d2e = load_recipe(recipe_file, ["d2e.objective=weighted"]).d2e
    assert (d2e.debias, d2e.distill, d2e.view_gradients) == (True, False, "original")
