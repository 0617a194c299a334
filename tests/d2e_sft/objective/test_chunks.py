"""The loss in chunks is the whole one, and the reference of a preference is computed once."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from d2e_sft.config.objectives import OBJECTIVES
from d2e_sft.config.recipe import D2ESection
from d2e_sft.model.device import cpu_has_bfloat16
from d2e_sft.objective import reference
from d2e_sft.objective.chunks import Head, sum_in_chunks
from d2e_sft.objective.objectives import AnswerTokens, Objective
from d2e_sft.util.errors import UserError
from tests.naive import CONFIGS, naive_loss, naive_terms
from tests.naive_pairs import CONFIGS as PAIR_CONFIGS
from tests.naive_pairs import naive, pair_rows, step
from tests.tiny import save_tiny_model, tiny_model, with_lora

ROWS, WIDTH, VOCABULARY = 13, 8, 50


class Drawn:
    """Random head weights, hidden states and answer tokens, in float64."""

    def __init__(self, config: D2ESection) -> None:
        torch.manual_seed(0)
        self.weight = torch.randn(VOCABULARY, WIDTH, dtype=torch.float64, requires_grad=True)
        self.states: dict[Any, torch.Tensor] = {
            view: torch.randn(ROWS, WIDTH, dtype=torch.float64, requires_grad=True) for view in config.views
        }
        self.tokens = AnswerTokens(torch.randint(VOCABULARY, (ROWS,)), torch.arange(ROWS) % 3 > 0)
        self.objective = Objective.of(config, VOCABULARY)

    def project(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden @ self.weight.T


def identity_sums(objective: Objective, states: dict[Any, torch.Tensor], targets: torch.Tensor) -> Any:
    """The sums of states that are logits already."""
    tokens = AnswerTokens(targets, torch.ones_like(targets, dtype=torch.bool))
    return sum_in_chunks(objective, Head(lambda logits: logits), states, tokens)


def assert_same_gradients(ours: torch.Tensor, theirs: torch.Tensor, of: list[torch.Tensor]) -> None:
    pair = (torch.autograd.grad(loss, of, allow_unused=True, materialize_grads=True) for loss in (ours, theirs))
    for one, other in zip(*pair, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


# Each objective once, with one of the ways to cut the answer tokens, and with and without a soft cap of the logits.
CUTS = [(None, None), (4, None), (4, 9)]
CASES = [(name, *CUTS[n % 3], 5.0 if n % 2 else None) for n, name in enumerate(CONFIGS)]


@pytest.mark.parametrize(("name", "chunk_rows", "min_chunks", "cap"), CASES)
def test_chunks_sum_to_the_formulas_on_whole_logits(
    name: str, chunk_rows: int | None, min_chunks: int | None, cap: float | None
) -> None:
    config = CONFIGS[name]
    given = Drawn(config)

    def project(hidden: torch.Tensor) -> torch.Tensor:
        logits = given.project(hidden)
        return logits if cap is None else cap * torch.tanh(logits / cap)

    logits: dict[Any, torch.Tensor] = {view: project(state) for view, state in given.states.items()}
    if config.view_gradients == "original":
        logits = {view: z if view == "original" else z.detach() for view, z in logits.items()}
    expected = naive_terms(logits, given.tokens.targets, config)
    loss = naive_loss(expected, config)
    head = Head(project, [given.weight], chunk_rows, min_chunks)
    ours = sum_in_chunks(given.objective, head, given.states, given.tokens)
    torch.testing.assert_close(ours["loss"], loss, rtol=1e-12, atol=1e-12)
    for term in given.objective.weights:
        torch.testing.assert_close(ours[term], expected[term], rtol=1e-11, atol=1e-12, msg=term)
        assert not ours[term].requires_grad
    assert_same_gradients(ours["loss"], loss, [given.weight, *given.states.values()])
    torch.testing.assert_close(ours, given.objective.sums(logits, given.tokens), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.004), (torch.float16, 0.0005)])
def test_low_precision_logits_are_debiased_in_float32(dtype: torch.dtype, tolerance: float) -> None:
    torch.manual_seed(0)
    config = D2ESection(alpha=0.7, view_gradients="original")
    states: dict[Any, torch.Tensor] = {view: (20 * torch.randn(6, 30)).to(dtype) for view in config.views}
    original, targets = states["original"].requires_grad_(), torch.randint(30, (6,))
    reference = naive_loss(naive_terms({view: z.double() for view, z in states.items()}, targets, config), config)
    ours = identity_sums(Objective.of(config, 30), states, targets)["loss"]
    assert ours.dtype == torch.float32
    assert ours.item() == pytest.approx(reference.item(), rel=1e-6)
    (expected,), (gradient,) = (torch.autograd.grad(loss, original) for loss in (reference, ours))
    assert gradient.dtype == dtype
    assert (gradient - expected).abs().max() <= tolerance * expected.abs().max()


def test_float16_gradients_are_scaled_before_they_are_rounded() -> None:
    # Probabilities of 1e-9 vanish in float16; times the loss scale of 2¹⁶ they do not.
    logits = torch.tensor([[20.0, 0.0, 0.0]], dtype=torch.float16, requires_grad=True)
    loss = identity_sums(Objective.of(CONFIGS["named-sft"], 3), {"original": logits}, torch.tensor([0]))["loss"]
    (gradient,) = torch.autograd.grad(loss * 2**16, logits)
    assert gradient[0, 1].item() == pytest.approx(2**16 * math.exp(-20), rel=0.01)


def test_a_process_without_answer_tokens_left_runs_empty_chunks_in_float16() -> None:
    weight = torch.randn(9, 4).half().requires_grad_()
    state = torch.randn(2, 4).half().requires_grad_()
    head = Head(lambda hidden: hidden @ weight.T, [weight], chunk_rows=2, min_chunks=3)
    tokens = AnswerTokens(torch.tensor([1, 2]), torch.ones(2, dtype=torch.bool))
    sum_in_chunks(Objective.of(CONFIGS["sft"], 9), head, {"original": state}, tokens)["loss"].backward()
    assert state.grad is not None
    assert bool(state.grad.isfinite().all() and state.grad.any())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_loss_and_gradients_are_finite_for_logits_up_to_1e4(objective: Any, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    d2e = D2ESection(objective=objective) if objective == "sft" else D2ESection(objective=objective, alpha=5.0)
    extremes = torch.tensor([1e4, -1e4, 0.0])
    states: dict[Any, torch.Tensor] = {
        view: extremes[torch.randint(3, (20, 12))].to(dtype).requires_grad_() for view in d2e.views
    }
    loss = identity_sums(Objective.of(d2e, 12), states, torch.randint(12, (20,)))["loss"]
    assert loss.isfinite()
    for gradient in torch.autograd.grad(loss, [*states.values()], allow_unused=True, materialize_grads=True):
        assert gradient.isfinite().all()


def test_an_objective_whose_terms_change_is_refused() -> None:
    objective = Objective.of(CONFIGS["d2e"], VOCABULARY)
    fewer = Objective(objective.d2e, lambda *given: {"ce": torch.zeros(2)}, objective.weights)
    tokens = AnswerTokens(torch.zeros(2, dtype=torch.long), torch.ones(2, dtype=torch.bool))
    with pytest.raises(UserError, match="returned the terms ce, before that ce, kl"):
        fewer.sums({"original": torch.zeros(2, 3), "imagined": torch.zeros(2, 3)}, tokens)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("D2E_CACHE", str(tmp_path / "cache"))


def test_the_reference_is_kept_by_weights_and_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computed = []
    plain = reference.answer_log_probabilities
    monkeypatch.setattr(
        reference, "answer_log_probabilities", lambda *given: computed.append(len(given)) or plain(*given)
    )

    def runs(model: Any, rows: Any = None, **options: Any) -> bool:
        before = len(computed)
        step(tmp_path, PAIR_CONFIGS["dpo"], pair_rows() if rows is None else rows, model, **options)
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


def test_without_pairs_or_with_another_model_as_reference_it_is_refused(tmp_path: Path) -> None:
    rows = pair_rows()
    with pytest.raises(UserError, match="no training row has a rejected answer") as error:
        step(tmp_path, PAIR_CONFIGS["dpo"], [{**row, "rejected": []} for row in rows])
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


@pytest.mark.skipif(not cpu_has_bfloat16(), reason="trains in bfloat16")
def test_the_reference_is_computed_in_the_precision_of_training(tmp_path: Path) -> None:
    rows = pair_rows()
    _, log = step(tmp_path, PAIR_CONFIGS["dpo"], rows, bf16=True)
    assert log["rewards/chosen"] == pytest.approx(0, abs=1e-4), "the model has not changed yet"
