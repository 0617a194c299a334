"""Objectives against the naive oracle, also of pairs and of one's own; metrics of a step."""

import copy
import itertools
import math
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from d2e_sft.config.objectives import OBJECTIVES
from d2e_sft.config.recipe import D2ESection, load_recipe
from d2e_sft.data.sample import write_samples
from d2e_sft.model.collation import model_inputs
from d2e_sft.model.packing_support import Layout, choose_layout, collator_for
from d2e_sft.objective import attach
from d2e_sft.objective.attach import AttachedObjective
from d2e_sft.objective.metrics import ObjectiveMetrics
from d2e_sft.objective.objectives import FUNCTIONS, Objective
from d2e_sft.objective.preference import FORMS, PAIR_MEANS
from d2e_sft.objective.reference import REFERENCE, Reference
from d2e_sft.train.config import D2EConfig
from d2e_sft.train.dry_run.report import Where, dry_run
from d2e_sft.train.run import train_recipe
from d2e_sft.train.trainer import D2ETrainer
from d2e_sft.util.errors import UserError
from tests.command import refusal_of
from tests.factories import make_world, write_recipe
from tests.naive import assert_equal_to_naive, gradients_of
from tests.naive_pairs import CONFIGS, SGD, changed, naive, pair_rows, step
from tests.tiny import make_samples, tiny_model

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


SINGLE = SimpleNamespace(num_processes=1)


def sums(ce: float, kl: float, *correct: int) -> dict[str, torch.Tensor]:
    named = {"ce": ce, "kl": kl, **dict(zip(("correct", "plain_correct", "imagined_correct"), correct, strict=True))}
    return {name: torch.tensor(value) for name, value in named.items()}


@pytest.mark.parametrize("debias", [True, False])
def test_terms_are_means_of_steps_and_accuracies_are_shares_of_answer_tokens(debias: bool) -> None:
    metrics = ObjectiveMetrics(D2ESection(debias=debias), {"ce": 1.0, "kl": 0.5}, torch.device("cpu"))
    # Two steps of one micro-batch: of 2 and of 8 answer tokens, each with the weight of a step.
    metrics.update(sums(6.0, 1.0, 1, 1, 0), torch.zeros(2), (30, 2, 1), scale=torch.tensor(1 / 2))
    metrics.update(sums(8.0, 0.0, 7, 4, 2), torch.zeros(8), (50, 3, 1), scale=torch.tensor(1 / 8))
    values, tokens = metrics.compute(SINGLE)
    expected = {
        "kl_rows": 2 / 5,
        "ce": (3 + 1) / 2,
        "kl": (0.5 + 0) / 2,
        "mean_token_accuracy": 8 / 10,
    }
    subtracted = {"plain_accuracy": 5 / 10, "bias_share": 2 / 10}
    assert values == pytest.approx({**expected, **subtracted} if debias else expected)
    assert tokens == 80
    assert metrics.loss_of(values) == pytest.approx(2 + 0.5 * 0.25)
    metrics.update(sums(6.0, 1.0, 1, 0, 0), torch.zeros(2), (30, 2, 1))
    assert metrics.compute(SINGLE)[0]["ce"] == 3.0, "the sums were reset"


_NUMBERS = itertools.count()

SUBTRACTING = """
import torch
import torch.nn.functional as F

def loss(logits, targets, content, options, *, times=1):
    subtracted = logits["original"] - times * options.alpha * logits["imagined"]
    return {"ce": F.cross_entropy(subtracted, targets, reduction="none")}
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
        ("logits['original'].sum()", r"returned tensor\(0\.,.*; expected a dict of terms"),
        ("None", "returned None; expected a dict of terms"),
        ("{}", "returned {}; expected a dict of terms"),
        ("{'ce': targets / 0 * 1.0}", "the term 'ce' contains NaN or infinity; expected"),
        ("{'ce': logits['original'].detach().sum(-1)}", "no term has a gradient, so nothing would be trained"),
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


def test_its_options_are_numbers_in_its_name(module: Any) -> None:
    own = D2ESection(objective=f"{module(SUBTRACTING)}:loss:times=2", debias=True, alpha=0.25)
    assert_equal_to_naive(tiny_model("llama", seed=3), own, "auto", formula=D2ESection(distill=False, alpha=0.5))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("tmes=2", r"has no option 'tmes'; it has times \[1\]\. Did you mean 'times'\?"),
        ("times=two", "times=two: out of range; expected a finite number, 0 or more"),
    ],
)
def test_other_options_are_refused_before_training(module: Any, tmp_path: Path, options: str, said: str) -> None:
    world = make_world(tmp_path / "world", train=4, bench=1)
    recipe = write_recipe(world, tmp_path / "run")
    refused = refusal_of("train", recipe, f"d2e.objective={module(SUBTRACTING)}:loss:{options}")
    assert re.search(said, " ".join(refused.split()))


def test_a_dry_run_estimates_the_memory_of_it(module: Any, tmp_path: Path) -> None:
    world, shown = make_world(tmp_path / "world", train=4, bench=1), list[str]()
    recipe = write_recipe(world, tmp_path / "run", f"d2e.objective={module(SUBTRACTING)}:loss")
    dry_run(load_recipe(recipe), shown.append, Where(weights=False))
    assert "at the peak" in "\n".join(shown)


def test_a_run_is_not_resumed_with_an_edited_objective(module: Any, tmp_path: Path) -> None:
    name = module(SUBTRACTING)
    world = make_world(tmp_path / "world", train=4, bench=1)
    keys = (f"d2e.objective={name}:loss:times=0.5", "d2e.debias=true", "train.max_steps=2", "train.save_steps=1")
    recipe_file = write_recipe(world, tmp_path / "run", *keys)
    recipe = load_recipe(recipe_file)
    train_recipe(recipe)
    train_recipe(recipe, resume=True)
    assert load_recipe(tmp_path / "run" / "recipe.yaml").d2e.objective == f"{name}:loss:times=0.5"
    with pytest.raises(UserError, match=r"d2e\.objective"):
        train_recipe(load_recipe(recipe_file, [f"d2e.objective={name}:loss:times=1"]), resume=True)
    (tmp_path / f"{name}.py").write_text(f"{SUBTRACTING}# edited")
    with pytest.raises(UserError, match="its file changed"):
        train_recipe(recipe, resume=True)


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


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("D2E_CACHE", str(tmp_path / "cache"))


def assert_equal_to_naive_preference(
    model: Any, config: D2ESection, layout: Layout | None, packing: Any = "auto"
) -> None:
    rows, reference = pair_rows(config), copy.deepcopy(model)
    layout = layout or choose_layout(model, config, packing)
    if config.needs_reference:
        found = Reference.of(config, model, layout).log_probabilities(config, rows, batch_size=2)
        rows = [{**row, REFERENCE: values} for row, values in zip(rows, found, strict=True)]
    objective = AttachedObjective(model, config, layout)
    trained = copy.deepcopy(reference)
    for one in (model, trained):
        changed(one)
    inputs = model_inputs(collator_for(layout, config, model.config)(rows))
    sums = objective.sums(model, inputs)
    loss = sums["loss"] / len(inputs["targets"])
    expected = naive(trained, reference, rows, config)
    loss.backward()
    expected["loss"].backward()
    assert loss.item() == pytest.approx(expected["loss"].item(), rel=1e-5)
    assert sums["preference"].item() / 3 == pytest.approx(expected["preference"].item(), rel=1e-5)
    for name, value in expected.items():
        if "/" in name:
            assert sums[name].item() / 3 == pytest.approx(value, rel=1e-5, abs=1e-5), name
    theirs = gradients_of(trained)
    for name, gradient in gradients_of(model).items():
        if theirs[name].norm() > 1e-4:
            assert (gradient - theirs[name]).norm() <= 1e-5 * theirs[name].norm(), name


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("packing", ["shared_batch", "shared_prefix", "batched"])
def test_every_form_equals_its_formula_in_every_layout(packing: str, config: D2ESection) -> None:
    assert_equal_to_naive_preference(tiny_model("qwen2", seed=3).double(), config, None, packing)


@pytest.mark.parametrize("form", ["dpo", "orpo"])
@pytest.mark.parametrize("kind", ["t5", "mamba", "gemma3"])
def test_models_that_are_not_packed_and_tied_heads_too(kind: str, form: str) -> None:
    assert_equal_to_naive_preference(tiny_model(kind, seed=3).double(), CONFIGS[form], None)


@pytest.mark.parametrize("form", FORMS)
def test_chunks_of_answer_tokens_change_nothing(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attach, "CHUNK_ELEMENTS", 7 * 260)  # chunks cut answers
    assert_equal_to_naive_preference(tiny_model("llama", seed=3).double(), CONFIGS[form], None)


@pytest.mark.parametrize("form", ["dpo", "orpo"])
@pytest.mark.parametrize(
    "cut",
    [
        {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 10},
        {"per_device_train_batch_size": 5, "gradient_accumulation_steps": 2},
        {"micro_batch_tokens": 200, "batch_size": 10},
        {"micro_batch_tokens": 200, "batch_size": 10, "packing": "batched"},
    ],
    ids=["one row", "five rows", "tokens", "tokens, padded"],
)
def test_a_step_does_not_depend_on_how_its_rows_are_cut(tmp_path: Path, form: str, cut: dict[str, Any]) -> None:
    config, rows = CONFIGS[form], pair_rows(count=10)
    whole, log = step(tmp_path, config, rows)
    other, cut_log = step(tmp_path, config, rows, **cut)
    torch.testing.assert_close(other, whole, rtol=1e-4, atol=1e-5 * whole.abs().max().item())
    assert log["loss"] == pytest.approx(config.sft_weight * log["ce"] + log["preference"], rel=1e-5)
    # Before the first step rewards by a reference are 0 but for rounding, so which of two is higher means nothing.
    means = [name for name in PAIR_MEANS if name != "rewards/accuracies" or form == "orpo"]
    for name in ("loss", "ce", "preference", *means, "mean_token_accuracy"):
        assert cut_log[name] == pytest.approx(log[name], rel=1e-4, abs=1e-6), name


def test_the_head_gets_its_gradient_in_bfloat16(tmp_path: Path) -> None:
    """Autocast keeps a cast weight; one that was cast without gradient must not be used again."""
    moved = {precision: step(tmp_path, CONFIGS["dpo"], pair_rows(), bf16=precision)[0] for precision in (False, True)}
    exact, rounded = moved[False], moved[True]
    assert (exact - rounded).norm() < 0.1 * exact.norm()


def test_held_out_rows_have_the_same_values_in_any_batch(tmp_path: Path) -> None:
    rows, values = pair_rows(count=10), []
    for size in (1, 4, 10):
        args = D2EConfig(str(tmp_path), **{**SGD, **CONFIGS["ipo"].model_dump()}, per_device_eval_batch_size=size)
        trainer = D2ETrainer(tiny_model(seed=3), args, train_dataset=rows, eval_dataset=rows)
        changed(trainer.model)
        values.append(trainer.evaluate())
    with torch.no_grad():
        expected = naive(changed(tiny_model(seed=3).double()), tiny_model(seed=3).double(), rows, CONFIGS["ipo"])
    for found in values:
        for name in ("loss", "preference", *PAIR_MEANS):
            assert found[f"eval_{name}"] == pytest.approx(float(expected[name]), rel=2e-3, abs=1e-4), name
            assert found[f"eval_{name}"] == pytest.approx(values[0][f"eval_{name}"], rel=1e-4, abs=1e-6), name
