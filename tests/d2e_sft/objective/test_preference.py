"""`prefer` equals each form's formula, one forward per answer, in every layout and however a batch is cut."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from d2e_sft.config.recipe import D2ESection
from d2e_sft.model.micro_batch import model_inputs
from d2e_sft.model.packing_support import Layout, choose_layout, collator_for
from d2e_sft.objective import attach, reference
from d2e_sft.objective.attach import attach_objective
from d2e_sft.objective.bias_model import with_column
from d2e_sft.objective.preference import FORMS, PAIR_MEANS
from d2e_sft.objective.reference import REFERENCE, Reference
from d2e_sft.train.arguments.config import D2EConfig
from d2e_sft.train.trainer import D2ETrainer
from d2e_sft.util.errors import UserError
from tests.naive import encoded_rows, gradients_of
from tests.tiny import save_tiny_model, tiny_model, with_lora

CONFIGS = {
    **{form: D2ESection(objective="prefer", prefer_form=form, sft_weight=0.7) for form in FORMS},
    "dpo alone": D2ESection(objective="prefer", sft_weight=0, prefer_beta=0.5),
    "simpo without a margin": D2ESection(objective="prefer", prefer_form="simpo", prefer_gamma=0),
}
REJECTED = {0: [5, 9, 7, 30, 2], 1: [11, 3], 3: [40, 41, 42, 43, 44, 45, 46, 2]}  # row → tokens; the others have none


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("D2E_CACHE", str(tmp_path / "cache"))


def pair_rows(config: D2ESection = CONFIGS["dpo"], count: int = 5) -> list[dict[str, Any]]:
    rows = encoded_rows(config, count)
    return [{**row, "rejected": REJECTED.get(number % 5, [])} for number, row in enumerate(rows)]


def changed(model: Any, amount: float = 0.05) -> Any:
    """The model after some training."""
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(amount * torch.randn(parameter.shape))
    return model


def token_log_p(model: Any, row: dict[str, Any], answer: list[int]) -> torch.Tensor:
    if model.config.is_encoder_decoder:
        decoder = torch.tensor([[model.config.decoder_start_token_id, *answer[:-1]]])
        logits = model(input_ids=torch.tensor([row["original"]]), decoder_input_ids=decoder).logits[0]
    else:
        logits = model(input_ids=torch.tensor([row["original"] + answer])).logits[0, -len(answer) - 1 : -1]
    return torch.stack([z.softmax(-1)[token].log() for z, token in zip(logits.double(), answer, strict=True)])


def pair_loss(form: str, gold: torch.Tensor, other: torch.Tensor, ratios: Sequence[Any], config: D2ESection) -> Any:
    """A pair's loss by its formula; `ratios` are log p − log r of both answers."""
    beta, gamma = config.prefer_beta or (2.0 if form == "simpo" else 0.1), config.prefer_gamma
    s, t = ratios
    if form == "dpo":
        return -(1 / (1 + (-beta * (s - t)).exp())).log()
    if form == "hinge":
        return max(1 - beta * (s - t), torch.zeros((), dtype=torch.float64))
    if form == "ipo":
        return (s / len(gold) - t / len(other) - 1 / (2 * beta)) ** 2
    p, q = gold.mean().exp(), other.mean().exp()
    if form == "simpo":
        return -(1 / (1 + math.exp(gamma) * (q / p) ** beta)).log()
    odds = (p / (1 - p)) / (q / (1 - q))
    return -beta * (odds / (1 + odds)).log()


def naive(model: Any, reference: Any, rows: Sequence[dict[str, Any]], config: D2ESection) -> dict[str, Any]:
    """The loss and the log's values, from one forward per answer."""
    golds = [token_log_p(model, row, row["answer"]) for row in rows]
    losses, means = [], []
    for row, gold in zip(rows, golds, strict=True):
        if not row["rejected"]:
            continue
        other = token_log_p(model, row, row["rejected"])
        with torch.no_grad():
            base = [token_log_p(reference, row, row[name]).sum() for name in ("answer", "rejected")]
        ratios = [one.sum() - r for one, r in zip((gold, other), base, strict=True)]
        losses.append(pair_loss(config.prefer_form, gold, other, ratios, config))
        scores = ratios if config.prefer_form in ("dpo", "ipo", "hinge") else [gold.mean(), other.mean()]
        beta = config.prefer_beta or (2 if config.prefer_form == "simpo" else 0.1)
        means.append([*(beta * s.item() for s in scores), gold.sum().item(), other.sum().item()])
    ce, tokens = -sum(gold.sum() for gold in golds), sum(map(len, golds))
    names = ("rewards/chosen", "rewards/rejected", "logps/chosen", "logps/rejected")
    return {
        "loss": config.sft_weight * ce / tokens + sum(losses) / len(losses),
        "preference": sum(losses) / len(losses),
        **{name: sum(column) / len(means) for name, column in zip(names, zip(*means, strict=True), strict=True)},
        "rewards/margins": sum(one[0] - one[1] for one in means) / len(means),
        "rewards/accuracies": sum(one[0] > one[1] for one in means) / len(means),
    }


def assert_equal_to_naive(model: Any, config: D2ESection, layout: Layout | None, packing: Any = "auto") -> None:
    rows, reference = pair_rows(config), copy.deepcopy(model)
    layout = layout or choose_layout(model, config, packing)
    if config.needs_reference:
        found = Reference.of(config, model, layout).log_probabilities(config, rows, batch_size=2)
        rows = with_column(rows, REFERENCE, found)
    attach_objective(model, config, through_logits=layout.through_logits)
    trained = copy.deepcopy(reference)
    for one in (model, trained):
        changed(one)
    inputs = model_inputs(collator_for(layout, config, model.config)(rows))
    sums = model(**inputs)
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
    assert_equal_to_naive(tiny_model("qwen2", seed=3).double(), config, None, packing)


@pytest.mark.parametrize("form", ["dpo", "orpo"])
@pytest.mark.parametrize("kind", ["t5", "mamba", "gemma3"])
def test_models_that_are_not_packed_and_tied_heads_too(kind: str, form: str) -> None:
    assert_equal_to_naive(tiny_model(kind, seed=3).double(), CONFIGS[form], None)


@pytest.mark.parametrize("form", FORMS)
def test_chunks_of_answer_tokens_change_nothing(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attach, "CHUNK_ELEMENTS", 7 * 260)  # chunks cut answers
    assert_equal_to_naive(tiny_model("llama", seed=3).double(), CONFIGS[form], None)


SGD = {"optim": "sgd", "learning_rate": 0.1, "lr_scheduler_type": "constant", "max_grad_norm": 0, "logging_steps": 1,
       "logging_first_step": False, "bf16": False, "disable_tqdm": True}  # fmt: skip


def step(
    folder: Path, config: D2ESection, rows: Any, model: Any = None, **options: Any
) -> tuple[Any, dict[str, float]]:
    """The change of the weights in one step over all rows, and its log."""
    whole = {} if "micro_batch_tokens" in options else {"gradient_accumulation_steps": 1}
    size = {"per_device_train_batch_size": len(rows), "max_steps": 1}
    given = {**size, **whole, **SGD, **config.model_dump(), **options}
    trainer = D2ETrainer(model or tiny_model(seed=3), D2EConfig(str(folder), **given), train_dataset=rows)
    start = [p.detach().clone() for p in trainer.model.parameters()]
    trainer.train()
    moved = torch.cat([(p.detach() - q).flatten() for p, q in zip(trainer.model.parameters(), start, strict=True)])
    return moved, trainer.state.log_history[0]


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
    for name in ("loss", "ce", "preference", *means, "plain_accuracy"):
        assert cut_log[name] == pytest.approx(log[name], rel=1e-4, abs=1e-6), name


def test_weights_of_samples_multiply_the_losses_of_their_pairs(tmp_path: Path) -> None:
    rows = pair_rows()
    plain, _ = step(tmp_path, CONFIGS["dpo"], rows)
    twice, log = step(tmp_path, CONFIGS["dpo"], [{**row, "weight": 2.0} for row in rows])
    torch.testing.assert_close(twice, 2 * plain, rtol=1e-4, atol=1e-5 * plain.abs().max().item())
    assert log["sample_weight"] == 2


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


def test_the_reference_is_computed_once_and_kept_by_weights_and_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = []
    plain = reference.answer_log_probabilities
    monkeypatch.setattr(
        reference, "answer_log_probabilities", lambda *given: computed.append(len(given)) or plain(*given)
    )

    def runs(model: Any, rows: Any = None, **options: Any) -> bool:
        before = len(computed)
        step(tmp_path, CONFIGS["dpo"], pair_rows() if rows is None else rows, model, **options)
        return len(computed) > before

    def fresh_adapter(seed: int) -> Any:
        return with_lora(tiny_model(seed=3), seed, init_lora_weights=True)

    assert runs(tiny_model(seed=3))
    assert not runs(tiny_model(seed=3))
    assert not runs(tiny_model(seed=3), learning_rate=0.3)
    assert not runs(fresh_adapter(1)), "an adapter that changes nothing yet has the reference of its base"
    assert runs(with_lora(tiny_model(seed=3))), "one that does has its own"
    assert runs(tiny_model(seed=4))
    assert runs(tiny_model(seed=3), [{**row, "rejected": [*row["rejected"], 4]} for row in pair_rows()])
    for file in (tmp_path / "cache" / "reference").iterdir():
        file.write_text(file.read_text().replace("-", "", 1))
    assert runs(tiny_model(seed=3)), "a damaged file is not believed"


def test_the_first_step_has_no_reward_yet_and_a_log_has_trls_names(tmp_path: Path) -> None:
    _, log = step(tmp_path, CONFIGS["dpo"], pair_rows())
    assert log["rewards/margins"] == pytest.approx(0, abs=1e-4)
    assert log["preference"] == pytest.approx(math.log(2), rel=1e-3)
    assert {"rewards/chosen", "rewards/rejected", "rewards/accuracies", "logps/chosen", "logps/rejected"} <= log.keys()


def test_without_pairs_or_with_another_model_as_reference_it_is_refused(tmp_path: Path) -> None:
    rows = pair_rows()
    with pytest.raises(UserError, match="no training row has a rejected answer") as error:
        step(tmp_path, CONFIGS["dpo"], [{**row, "rejected": []} for row in rows])
    assert "--swap" in str(error.value.remedy)
    save_tiny_model(tmp_path / "other", "qwen2")
    other = D2ESection(objective="prefer", prefer_reference=str(tmp_path / "other"))
    with pytest.raises(UserError, match=r"prefer_reference=.*has the architecture qwen2; expected llama"):
        step(tmp_path, other, rows)


def test_another_run_may_be_the_reference(tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "other", seed=4)
    config, rows = D2ESection(objective="prefer", prefer_reference=str(tmp_path / "other")), pair_rows()
    _, log = step(tmp_path, config, rows)
    expected = naive(tiny_model(seed=3).double(), tiny_model(seed=4).double(), rows, config)
    assert log["rewards/margins"] == pytest.approx(float(expected["rewards/margins"]), rel=1e-4)
