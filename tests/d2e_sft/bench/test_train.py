"""Timed steps and decoding compute what is claimed: one loss, one gradient, the tokens of guidance."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from d2e_sft.bench import peers
from d2e_sft.bench.decode import bench_decoding
from d2e_sft.bench.harness import Cost, Measurement, in_turns
from d2e_sft.bench.train import (
    ENGINES,
    PREFER,
    PREFERENCE_ENGINES,
    SFT,
    StepEngine,
    step_rows,
    synthetic_pairs,
    synthetic_rows,
    trl_engines,
)
from d2e_sft.config.recipe import D2ESection
from d2e_sft.decoding import Output
from d2e_sft.model.attention.registry import BY_BRANCH, register
from d2e_sft.model.device import PeakMemory
from d2e_sft.model.packing_support import choose_layout
from d2e_sft.model.shapes import Work, random_model
from d2e_sft.util.errors import UserError
from tests.command import output_of
from tests.tiny import VOCAB_SIZE, save_tiny_model, tiny_model

CPU = torch.device("cpu")
BY_NAME = {engine.name: engine for engine in ENGINES}


@pytest.mark.parametrize("unrefined", [0, 2, 3])
@pytest.mark.parametrize("view_gradients", ["all", "original"])
def test_all_engines_compute_one_loss_and_one_gradient(view_gradients: Any, unrefined: int) -> None:
    rows = synthetic_rows(3, 20, VOCAB_SIZE, unrefined=unrefined)
    results: dict[bool, list[tuple[float, torch.Tensor]]] = {True: [], False: []}
    for engine in ENGINES:
        model = tiny_model("llama", seed=3)
        layout = choose_layout(model, D2ESection(), "shared_batch")
        model.set_attn_implementation(layout.attention if engine.packed else "sdpa")
        loss = engine.make(model, rows, SFT if engine.is_sft else D2ESection(view_gradients=view_gradients))()
        loss.backward()
        gradients = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        results[engine.is_sft].append((loss.item(), gradients))
    for group in results.values():
        for loss_value, gradients in group[1:]:
            assert loss_value == pytest.approx(group[0][0], rel=1e-5)
            assert (gradients - group[0][1]).norm() < 1e-5 * group[0][1].norm()


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
@pytest.mark.parametrize(("gradients", "unrefined"), [("all", 0), ("original", 2)])
def test_flops_are_those_of_the_products_that_are_computed(engine: StepEngine, gradients: Any, unrefined: int) -> None:
    register()
    model, rows = random_model("tiny", CPU), synthetic_rows(3, 40, 300, unrefined=unrefined)
    d2e = SFT if engine.is_sft else D2ESection(view_gradients=gradients)
    model.set_attn_implementation(BY_BRANCH if engine.packed else "sdpa")
    step = engine.make(model, rows, d2e)
    with FlopCounterMode(display=False) as counted:
        step().backward()
    products = sum(n for operator, n in counted.get_flop_counts()["Global"].items() if "mm" in str(operator))
    without_attention = replace(engine.work(rows, d2e), pairs=0, pairs_without_gradient=0)
    # Norms count as weights, and hidden states are subtracted before the head, which projects two views then.
    assert without_attention.flops(model) == pytest.approx(products, rel=0.05)


def test_work_is_counted_by_hand() -> None:
    rows = [{"original": [1] * 9, "imagined": [1] * 9, "refined": [1] * 9, "answer": [2, 3]}]
    assert ENGINES[0].work(rows, SFT) == Work(tokens=11, positions=11, pairs=66)
    pairs = [{"original": [1] * 9, "answer": [2, 3], "rejected": [4, 5]}]
    work = PREFERENCE_ENGINES[-1].work(pairs, PREFER)
    assert (work.tokens, work.positions, work.pairs) == (11, 4, 45 + 2 * 10), "the prompt once, and two branches"
    assert ENGINES[0].work(pairs, PREFER) == Work(22, 22, 2 * 66), "a row each"


def test_ratios_are_medians_over_the_baseline_that_shares_as_much() -> None:
    rows = synthetic_rows(8, 150, 300)
    measured = {
        replace(BY_NAME[name], d2e=SFT if BY_NAME[name].is_sft else D2ESection()): Measurement(
            [Cost(clock, 2 * clock) for clock in seconds], peak
        )
        for name, seconds, peak in (
            ("sft_plain", [4.0, 5.0, 90.0], 100),
            ("sft_shared", [2.0, 1.0, 2.0], 60),
            ("shared_batch", [3.0, 3.0, 1.0], 110),
        )
    }
    plain, shared, d2e = step_rows(random_model("tiny", CPU), measured, rows, context=150)
    assert (plain["clock_ms"], plain["cpu_ms"], plain["to_sft"], plain["to_sft_plain"]) == (5000, 10_000, 1, 1)
    assert (plain["half_spread_ms"], plain["peak_mb"]) == (43_000, 100)
    assert (shared["to_sft"], shared["to_sft_plain"]) == (1, 0.2)
    assert (d2e["to_sft"], d2e["to_sft_plain"], d2e["peak_mb"]) == (1.5, 0.6, 110)
    assert "to_trl" not in d2e, "it was not measured"
    # An answer's last token predicts nothing and is not computed.
    assert d2e["floor_ratio"] == pytest.approx((130 + 8 * 327) / (130 + 8 * 189), abs=1e-3)
    assert d2e["tokens_per_s"] == pytest.approx(8 * (319 + 169 + 229) / 3, abs=0.1)


def test_the_command_writes_a_row_for_each_engine_and_gradient(tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "model")
    file = tmp_path / "out" / "bench.json"
    options = ["--contexts", "12,20", "--samples", "2", "--unshared-samples", "1", "--repeats", "1"]
    table = output_of("bench", "train", "--model", model, *options, "--json", file)
    rows = json.loads(file.read_text())["rows"]
    assert {(row["variant"], row["view_gradients"], row["context"]) for row in rows} == {
        (engine.name, gradients, context)
        for engine in ENGINES
        for gradients in (("all",) if engine.is_sft else ("all", "original"))
        for context in (12, 20)
    }
    for row in rows:
        assert row["clock_ms"] > 0
        # A model this small takes less than what the process gives back meanwhile, so the figure may be negative.
        assert abs(row["peak_mb"]) < 2000
        assert {"to_sft", "floor_ratio", "tokens", "samples"} <= row.keys()
    assert table.count("shared_batch") == 4


def test_chosen_engines_are_measured_and_profiled_with_their_baselines(tmp_path: Path) -> None:
    model, file = save_tiny_model(tmp_path / "model"), tmp_path / "bench.json"
    options = ["--contexts", "12", "--samples", "2", "--repeats", "1", "--engines", "shared_batch", "--profile"]
    printed = output_of("bench", "train", "--model", model, *options, "--unrefined", "0.5", "--json", file)
    assert printed.count("aten::mm") >= 3
    rows = json.loads(file.read_text())["rows"]
    assert {row["unrefined"] for row in rows} == {1}
    # A prefix of 130, two contexts of 12 with question and answer (39); then two imagined views and a refined one.
    assert [row["tokens"] for row in rows[:2]] == [130 + 2 * 51, 130 + 2 * 51 + 3 * 39 + round(0.4 * 12)]
    assert [row["variant"] for row in rows] == ["sft_shared", "shared_batch", "shared_batch"]
    assert not any("to_sft_plain" in row for row in rows)


def test_without_trl_the_option_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="trl is not installed") as error:
        trl_engines("float32")
    assert error.value.remedy == "pip install 'd2e-sft[bench]'"


def gradients_of(model: Any, loss: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad(set_to_none=True)
    loss.backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def assert_equal(model: Any, ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-5)
    for left, right in zip(gradients_of(model, ours), gradients_of(model, theirs), strict=True):
        assert (left - right).norm() <= 1e-4 * max(right.norm(), 1e-3)


def test_trl_has_the_loss_and_the_gradients_of_plain_sft_with_and_without_packing() -> None:
    pytest.importorskip("trl")
    model: Any = tiny_model().train()
    model.set_attn_implementation("sdpa")
    rows = synthetic_rows(3, 20, VOCAB_SIZE)
    for engine in trl_engines("float32"):
        step = engine.make(model, rows, SFT)
        assert_equal(model, ENGINES[0].make(model, rows, SFT)(), step())
        assert "forward" not in vars(model), "TRL's wrapper is not left behind"


def pairs_of_all_lengths() -> list[dict[str, Any]]:
    rows = synthetic_pairs(synthetic_rows(4, 20, VOCAB_SIZE), VOCAB_SIZE)
    return [
        {**row, "answer": row["answer"][: 10 - 2 * i], "rejected": row["rejected"][: 3 + i]}
        for i, row in enumerate(rows)
    ]


OURS = next(engine for engine in PREFERENCE_ENGINES if engine.name == "shared_batch")


@pytest.mark.parametrize(("form", "sft_weight"), [("dpo", 0), ("ipo", 0.7), ("hinge", 0)])
def test_prefer_has_the_loss_and_the_gradients_of_trls_dpo_trainer(form: str, sft_weight: float) -> None:
    pytest.importorskip("trl")
    model, rows = tiny_model(seed=3).double().train(), pairs_of_all_lengths()
    d2e = D2ESection.model_validate({"objective": "prefer", "prefer_form": form, "sft_weight": sft_weight})
    (engine,) = trl_engines("float32", prefers=True)
    model.set_attn_implementation("sdpa")
    theirs = engine.make(model, rows, d2e)()
    assert "forward" not in vars(model), "TRL's wrapper is not left behind"
    register()
    model.set_attn_implementation("d2e_by_branch")
    assert_equal(model, OURS.make(model, rows, d2e)(), theirs)


@pytest.mark.parametrize("form", ["orpo", "simpo"])
def test_forms_without_a_reference_have_the_loss_and_the_gradients_of_trls_formulas(form: str) -> None:
    pytest.importorskip("trl")
    from trl.experimental.cpo import CPOTrainer
    from trl.experimental.orpo import ORPOTrainer

    model, rows = tiny_model(seed=3).double().train(), pairs_of_all_lengths()
    d2e = D2ESection.model_validate({"objective": "prefer", "prefer_form": form, "sft_weight": 0, "prefer_beta": 0.4})
    answers = [(row["original"], row[name]) for name in ("answer", "rejected") for row in rows]
    width = max(len(prompt) + len(answer) for prompt, answer in answers)
    ids, labels = torch.zeros(8, width, dtype=torch.long), torch.full((8, width), -100)
    for i, (prompt, answer) in enumerate(answers):
        ids[i, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        labels[i, len(prompt) : len(prompt) + len(answer)] = torch.tensor(answer)
    model.set_attn_implementation("sdpa")
    logps = ORPOTrainer.get_batch_logps(model(ids).logits, labels, average_log_prob=True).chunk(2)
    options = {"beta": 0.4, "loss_type": "simpo", "simpo_gamma": 1.0, "alpha": 0.0, "label_smoothing": 0.0}
    trainer = SimpleNamespace(accelerator=SimpleNamespace(device="cpu"), **options)
    if form == "simpo":
        losses = CPOTrainer.cpo_loss(trainer, *logps)[0]
    else:
        losses = -ORPOTrainer.odds_ratio_loss(trainer, *logps)[0]
    register()
    model.set_attn_implementation("d2e_by_branch")
    ours = OURS.make(model, rows, d2e)() / sum(len(row["answer"]) for row in rows)
    assert_equal(model, ours, losses.mean())


def test_every_combination_is_a_row_and_the_debiased_tokens_are_those_of_guidance(tmp_path: Path) -> None:
    model, target = save_tiny_model(tmp_path / "model", seed=1), tmp_path / "new" / "bench.json"
    sizes = ["--prompts", "170,200", "--batches", "1,3", "--new-tokens", "2,7", "--repeats", "1"]
    printed = output_of("bench", "decode", "--model", model, *sizes, "--json", target)
    rows = json.loads(target.read_text("utf-8"))["rows"]
    engines = ("plain", "debiased", "guidance", "transformers_plain")
    assert [(row["prompt"], row["batch"], row["new_tokens"], row["variant"]) for row in rows] == [
        (prompt, batch, new, name) for prompt in (170, 200) for batch in (1, 3) for new in (2, 7) for name in engines
    ]
    for plain, debiased, guidance, _ in zip(*[iter(rows)] * 4, strict=True):
        assert plain["same"] == debiased["same"] == 1
        assert debiased["to_plain"] == pytest.approx(debiased["cpu_ms"] / plain["cpu_ms"], rel=0.1)
        assert debiased["to_guidance"] == pytest.approx(debiased["cpu_ms"] / guidance["cpu_ms"], rel=0.1)
    assert printed.count("100.0%") == len(rows) / 2


def test_in_vllm_both_variants_take_turns_from_an_empty_prefix_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    model = SimpleNamespace(get_vocab_size=lambda: 500)
    llm = SimpleNamespace(
        llm_engine=SimpleNamespace(vllm_config=SimpleNamespace(model_config=model)),
        reset_prefix_cache=lambda: calls.append("reset"),
    )

    def generate(llm: Any, pairs: Any, decoding: Any, **options: Any) -> list[Output]:
        calls.append((decoding.alpha, len(pairs), {len(pair.original) for pair in pairs}))
        tokens, again = [1] * decoding.max_new_tokens, int(decoding.alpha > 0)
        return [Output(n, None, tokens, True, resubmissions=again * (n == 0)) for n, _ in enumerate(pairs)]

    offline: Any = SimpleNamespace(generate=generate, load_llm=lambda name, **options: llm)
    monkeypatch.setitem(sys.modules, "d2e_sft.vllm.offline", offline)
    monkeypatch.setattr("d2e_sft.vllm.offline", offline, raising=False)
    monkeypatch.setattr("d2e_sft.vllm.engine.require_vllm", lambda: None)
    sizes: Any = {"prompts": [170], "batches": [3], "new_tokens": [5], "repeats": 2, "dtype": "float32"}
    plain, row = bench_decoding("m", **sizes, in_vllm=True)
    assert calls == ["reset", (0.0, 3, {170}), "reset", (0.5, 3, {170})] * 3
    assert (row["prompt"], row["batch"], row["new_tokens"], row["resubmissions"]) == (170, 3, 5, 1)
    assert (plain["variant"], row["variant"], row["to_plain"] > 0) == ("plain", "debiased", True)
    assert "to_guidance" not in row


def test_memory_is_the_peak_above_what_was_there() -> None:
    kept = torch.ones(30 * 2**20 // 4)
    variants = {"small": lambda: torch.ones(1), "large": lambda: torch.ones(60 * 2**20 // 4).sum().item()}
    *_, measured = in_turns(variants, 1, CPU, memory=PeakMemory)
    small, large = (one.peak_mb or 0 for one in measured.values())
    assert small < 20
    assert 50 < large < 90
    assert kept[0] == 1


def test_each_figure_has_its_own_median() -> None:
    assert Measurement([Cost(3, 1), Cost(1, 9), Cost(2, 2)]).cost == Cost(2, 2)
    slow, fast = [Cost(3, 8), Cost(8, 2)], [Cost(1, 2), Cost(2, 2)]
    assert Measurement(slow).ratio_to(Measurement(fast)) == 2.5
    by_clock = [Measurement(costs, by_clock=True) for costs in (slow, fast)]
    assert by_clock[0].ratio_to(by_clock[1]) == 3.5


def test_without_a_warm_up_every_turn_is_timed() -> None:
    *_, measured = in_turns({"only": list}, 2, CPU, warm_up=False)
    assert len(measured["only"].costs) == 2
