"""A user's own objective: found, trained by, and told what is wrong with what it returns."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import pytest

from d2e_sft.config.recipe import D2ESection, load_recipe
from d2e_sft.data.sample import write_samples
from d2e_sft.objective.objectives import Objective
from d2e_sft.train.dry_run.report import dry_run
from d2e_sft.train.run import train_recipe
from d2e_sft.util.errors import UserError
from tests.factories import log_history, make_world, write_recipe
from tests.naive import assert_equal_to_naive
from tests.tiny import make_samples, tiny_model

_NUMBERS = itertools.count()
HONEST = """
import torch.nn.functional as F

def both(logits, targets, content, options):
    one, other = (F.cross_entropy(logits[view], targets, reduction="none") for view in ("original", "imagined"))
    return {"ce": one, "imagined_ce": other}
"""

SUBTRACTING = """
import torch
import torch.nn.functional as F

def loss(logits, targets, content, options):
    ce = F.cross_entropy(logits["original"] - options.alpha * logits["imagined"], targets, reduction="none")
    return {"ce": ce, "kl": torch.zeros_like(ce)}
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a module into the working folder; gives its name, which no other test has."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def write(text: str) -> str:
        name = f"own_objective_{next(_NUMBERS)}"
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        return name

    return write


def returning(module: Any, expression: str, views: str = "[original, imagined]") -> Objective:
    name = module(f"import torch\ndef loss(logits, targets, content, options):\n    return {expression}\n")
    return Objective.of(D2ESection(objective=f"{name}:loss", own_views=views.strip("[]").split(", ")), 11)


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("{'ce': logits['original'].sum()}", r"the term 'ce' has the shape \(\); expected a tensor of shape \(2,\)"),
        ("{'ce': logits['original']}", r"the term 'ce' has the shape \(2, 11\); expected a tensor of shape \(2,\)"),
        ("{'ce': 1.0}", r"the term 'ce' is 1.0; expected a tensor of shape \(2,\)"),
        ("logits['original'].sum()", r"returned tensor\(0\.\); expected a dict of terms"),
        ("None", "returned None; expected a dict of terms"),
        ("{}", "returned {}; expected a dict of terms"),
        ("{'ce': targets / 0 * 1.0}", "the term 'ce' contains NaN or infinity; expected"),
        ("{'loss': targets * 1.0}", "the term 'loss' has a name that is already used in the log"),
        (
            "{'ce': logits['refined'].sum(-1)}",
            r"uses the view 'refined' but gets only original, im.*\n.*own_views",
        ),
    ],
)
def test_a_wrong_result_is_an_error_with_the_expected_form(module: Any, expression: str, said: str) -> None:
    with pytest.raises(UserError, match=r"d2e\.objective=own_objective_\d+:loss: .*" + said):
        returning(module, expression)


def test_errors_of_the_function_are_not_changed(module: Any) -> None:
    with pytest.raises(KeyError, match="weights"):
        returning(module, "{'ce': {}['weights']}")


def test_a_step_by_it_equals_the_same_objective_by_name(module: Any) -> None:
    own = D2ESection(objective=f"{module(SUBTRACTING)}:loss", debias=True)
    named = D2ESection(distill=False)
    assert (own.views, own.effective_alpha) == (named.views, named.effective_alpha)
    assert_equal_to_naive(tiny_model("llama", seed=3), own, "auto", formula=named)


def test_a_recipe_trains_by_it_and_its_dry_run_estimates_memory(module: Any, tmp_path: Path) -> None:
    world = make_world(tmp_path / "world", train=4, bench=1)
    objective = f"d2e.objective={module(HONEST)}:both"
    recipe = load_recipe(write_recipe(world, tmp_path / "run", objective, "train.max_steps=2"))
    shown: list[str] = []
    dry_run(recipe, shown.append)
    assert "at the peak" in "\n".join(shown)
    for entry in (entry for entry in log_history(train_recipe(recipe)) if "loss" in entry):
        assert entry["loss"] == pytest.approx(entry["ce"] + entry["imagined_ce"], rel=1e-4)


def test_a_missing_module_stops_before_a_model_is_loaded(tmp_path: Path) -> None:
    write_samples(make_samples(2), tmp_path / "train.jsonl")
    recipe = write_recipe(tmp_path, tmp_path / "run", "model.name=no/such-model", "d2e.objective=no_such_module:loss")
    with pytest.raises(UserError, match="no_such_module"):
        train_recipe(load_recipe(recipe))


@pytest.mark.parametrize("text", ["class Loss(torch.nn.Module): ...", "Loss = torch.nn.Linear(2, 2)"])
def test_an_objective_with_parameters_is_refused(module: Any, text: str) -> None:
    name = module(f"import torch\n{text}\n")
    with pytest.raises(UserError, match="expected a function, as only the model's parameters are optimised"):
        Objective.of(D2ESection(objective=f"{name}:Loss"), 11)
