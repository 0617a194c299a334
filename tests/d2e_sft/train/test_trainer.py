"""D2ETrainer: the objective it optimises, and that cutting a batch differently changes nothing."""

import logging
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import datasets
import pytest
import torch
from accelerate import PartialState
from transformers import PreTrainedTokenizerFast

from d2e_sft.config.recipe import D2ESection
from d2e_sft.decoding import generate_debiased
from d2e_sft.model.collation import left_pad
from d2e_sft.model.forward import may_leave_parameters_out
from d2e_sft.train.checks import count_steps
from d2e_sft.train.config import D2EConfig
from d2e_sft.train.trainer import D2ETrainer
from tests.chat_templates import CONVERSATION, template, template_tokenizer
from tests.naive import encoded_rows
from tests.tiny import tiny_model

SGD = {"optim": "sgd", "learning_rate": 0.5, "lr_scheduler_type": "constant", "max_grad_norm": 0, "logging_steps": 1,
       "logging_first_step": False}  # fmt: skip


def _trainer(
    folder: Path,
    config: D2ESection,
    *,
    micro: int,
    accumulation: int = 1,
    model: Any = None,
    rows: str = "",
    **options: Any,
) -> D2ETrainer:
    batch = {"per_device_train_batch_size": micro, "gradient_accumulation_steps": accumulation}
    options = {**batch, **SGD, **config.model_dump(), "overwrite_output_dir": True, **options}
    args = D2EConfig(str(folder), bf16=False, disable_tqdm=True, **options)
    given = encoded_rows(config, 8)
    if rows == BY_CONTEXTS:  # two contexts in turns, then a question of each row
        given = [
            {**row, "original": given[i % 2]["original"] + row["imagined"][-5:], "context": 1 + i % 2}
            for i, row in enumerate(given)
        ]
    return D2ETrainer(model or tiny_model(seed=3), args, train_dataset=datasets.Dataset.from_list(given))


def _weights(trainer: D2ETrainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


def _step(trainer: D2ETrainer) -> tuple[torch.Tensor, dict[str, float]]:
    """The change of the weights in one step, and its log."""
    start = _weights(trainer).clone()
    trainer.train()
    return _weights(trainer) - start, trainer.state.log_history[0]


BY_CONTEXTS = "sharing contexts"


@pytest.mark.parametrize(
    ("rows", "cuts"),
    [
        ("", [{"micro": 1, "accumulation": 8}, {"micro": 2, "accumulation": 4}]),
        (BY_CONTEXTS, [{"micro": 4, "accumulation": 2, "rows_per_context": 4}]),
        (BY_CONTEXTS, [{"micro": 8, "micro_batch_tokens": 400}]),
    ],
)
def test_however_a_batch_is_cut_its_gradients_and_values_stay(
    tmp_path: Path, rows: str, cuts: list[dict[str, Any]]
) -> None:
    # Answers differ in length, so a mean of micro-batch means would differ.
    whole, whole_log = _step(_trainer(tmp_path, D2ESection(), micro=8, rows=rows, max_steps=1))
    assert whole.abs().max() > 1e-3
    for cut in cuts:
        trainer = _trainer(tmp_path, D2ESection(), rows=rows, max_steps=1, **cut)
        changed, log = _step(trainer)
        torch.testing.assert_close(changed, whole, rtol=1e-4, atol=1e-6 * whole.abs().max().item())
        for key in ("loss", "ce", "kl", "mean_token_accuracy", "plain_accuracy", "bias_share"):
            assert log[key] == pytest.approx(whole_log[key], rel=1e-5), key
        if rows == BY_CONTEXTS:
            assert trainer.token_steps is not None
            (parts,) = trainer.token_steps
            assert len(parts) >= 2
            assert max(len({i % 2 for i in part}) for part in parts) == 1, "each micro-batch has one context only"


@pytest.mark.parametrize(("scale", "packing"), [(1.0, "shared_batch"), (0.5, "batched")])
def test_ligers_kernels_come_before_packed_rows_are_asked_for_and_leave_the_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scale: float, packing: str
) -> None:
    """A stand-in for the package, whose kernels need a GPU: a norm that is exact, and one that depends on the row."""
    asked: list[dict[str, Any]] = []

    def apply(model: Any, **kernels: bool) -> None:
        asked.append(kernels)
        norm = model.model.norm
        plain = norm.forward
        norm.forward = lambda states: plain(states) * (1.0 if states.shape[1] < 25 else scale)

    module = ModuleType("liger_kernel.transformers")
    module._apply_liger_kernel_to_instance = apply  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "liger_kernel", ModuleType("liger_kernel"))
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers", module)
    for user in ("transformers.integrations.liger", "d2e_sft.train.config"):
        monkeypatch.setattr(f"{user}.is_liger_kernel_available", lambda: True)
    options: dict[str, Any] = {"use_liger_kernel": True, "liger_kernel_config": {"cross_entropy": True, "rope": False}}
    trainer = _trainer(tmp_path, D2ESection(), micro=4, max_steps=1, **options)
    assert trainer.layout.packing == packing
    trainer.train()
    assert asked == [{"rope": False, "cross_entropy": False, "fused_linear_cross_entropy": False}]


def test_a_log_has_the_terms_of_the_loss_over_its_window_and_where_the_time_went(tmp_path: Path) -> None:
    config = D2ESection(kl_weight=0.5)
    counted = {"logging_steps": 3, "include_num_input_tokens_seen": "all"}
    trainer = _trainer(tmp_path, config, micro=2, accumulation=2, num_train_epochs=2, **counted)
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert [entry["step"] for entry in logs] == [3, 4], "the last, shorter window is logged too"
    times = ("time_in_model", "time_in_optimizer", "time_in_data", "time_elsewhere")
    for entry in logs:
        assert sum(entry[name] for name in times) == pytest.approx(1, abs=1e-3)
        assert entry["time_in_model"] > 0.2
        assert entry["loss"] == pytest.approx(entry["ce"] + 0.5 * entry["kl"], rel=1e-4)
        assert entry["kl"] > 0
        for share in ("mean_token_accuracy", "plain_accuracy", "bias_share"):
            assert 0 <= entry[share] <= 1
        assert entry["alpha"] == 0.5
        assert 0.05 < entry["memory_gib"] < 100
        assert entry["tokens_per_second"] > 0
    # Five of the eight samples have a refined view of their own; two epochs, logged after 12 samples and after 4.
    assert 12 * logs[0]["kl_rows"] + 4 * logs[1]["kl_rows"] == pytest.approx(2 * 5)
    tokens = sum(len(row[view]) + len(row["answer"]) - 1 for row in trainer.train_dataset for view in config.views)
    assert logs[1]["num_input_tokens_seen"] == 2 * tokens, "each view counts whole, and once"


@pytest.mark.parametrize("drawn", [{}, {"micro_batch_tokens": 400}])
def test_the_rows_that_fill_no_step_are_left_out_on_request(tmp_path: Path, drawn: dict[str, int]) -> None:
    options = {"num_train_epochs": 2, "dataloader_drop_last": True, **drawn}
    trainer = _trainer(tmp_path, D2ESection(objective="sft"), micro=3, **options)
    taken: list[list[int]] = []
    step = trainer.training_step
    trainer.training_step = lambda model, inputs, *rest: (
        taken.append(  # type: ignore[method-assign]
            [int(i) for part in inputs.get("micro_batches", [inputs]) for i in part["rows"]]
        )
        or step(model, inputs, *rest)
    )
    trainer.train()
    assert [len({*rows}) for rows in taken] == [3, 3, 3, 3], "of eight rows an epoch leaves two out"
    assert count_steps(trainer.recipe, 8, 1, drop_last=True).total == trainer.state.max_steps == 4


def test_plain_sft_is_what_transformers_computes_with_masked_prompts(tmp_path: Path) -> None:
    config = D2ESection(debias=False, distill=False)
    trainer = _trainer(tmp_path, config, micro=8)
    rows = list(trainer.train_dataset)
    batch = trainer.data_collator(rows)
    whole = left_pad([row["original"] + row["answer"] for row in rows], 0)
    labels = torch.full_like(whole["input_ids"], -100)
    for line, row in zip(labels, rows, strict=True):
        line[-len(row["answer"]) :] = torch.tensor(row["answer"])
    expected = trainer.model(**whole, labels=labels).loss
    assert trainer.compute_loss(trainer.model, batch).item() == pytest.approx(expected.item(), rel=1e-5)


def test_ddp_looks_for_weights_without_a_gradient_only_where_there_may_be_some(tmp_path: Path) -> None:
    made = _trainer(tmp_path, D2ESection(), micro=2)
    assert made.args.ddp_find_unused_parameters is False
    asked = _trainer(tmp_path, D2ESection(), micro=2, ddp_find_unused_parameters=True)
    assert asked.args.ddp_find_unused_parameters is True
    assert not any(may_leave_parameters_out(tiny_model(kind)) for kind in ("t5", "gpt2", "gemma3", "mamba"))
    with_experts: Any = torch.nn.Module()
    with_experts.config, with_experts.experts = made.model.config, torch.nn.Linear(1, 1)
    assert may_leave_parameters_out(with_experts)


def test_a_tied_head_is_not_missing_in_a_checkpoint(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = tiny_model("qwen2")
    trainer = _trainer(tmp_path, D2ESection(objective="sft"), micro=4, model=model, max_steps=1, save_steps=1)
    trainer.train()
    trainer.args.max_steps = 2
    logging.getLogger("transformers").addHandler(caplog.handler)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    logging.getLogger("transformers").removeHandler(caplog.handler)
    assert trainer.state.global_step == 2
    assert "missing keys" not in caplog.text
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_only_our_own_calls_leave_cudnns_attention_out(tmp_path: Path) -> None:
    found: list[bool] = []
    model = tiny_model(seed=3)
    model.model.layers[0].register_forward_hook(lambda *_: found.append(torch.backends.cuda.cudnn_sdp_enabled()))
    options: dict[str, Any] = {"gradient_checkpointing": True, "packing": "batched", "max_steps": 1}
    trainer = _trainer(tmp_path, D2ESection(), micro=2, model=model, **options)
    trainer.train()
    assert len(found) > 2, "the backward attends again"
    trainer.evaluate(trainer.train_dataset)
    rows = encoded_rows(D2ESection(), 2)
    generate_debiased(model, *([row[view] for row in rows] for view in ("original", "imagined")))
    assert not any(found)
    assert torch.backends.cuda.cudnn_sdp_enabled()


class _NotPlacedYet(D2EConfig):
    """As under FSDP and DeepSpeed, which move the model as training begins."""

    place_model_on_device = False


def test_exactness_is_measured_on_the_device_of_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args, model, devices = _NotPlacedYet(str(tmp_path), bf16=False, disable_tqdm=True), tiny_model(), list[str]()
    monkeypatch.setitem(PartialState._shared_state, "device", torch.device("meta"))
    monkeypatch.setattr("d2e_sft.model.packing_support.has_no_data", lambda model: False)
    model.model.embed_tokens.register_forward_pre_hook(lambda layer, inputs: devices.append(inputs[0].device.type))
    with pytest.raises(RuntimeError, match="meta"):  # tensors without data cannot be compared
        D2ETrainer(model, args, train_dataset=encoded_rows(D2ESection(), 2))
    assert devices == ["meta"]


trl = pytest.importorskip("trl")

# As in the templates of ChatML, Llama 3, Gemma, and Qwen2.5 with its system message. Marks are where TRL has them:
# a line break after the end of a turn is trained on.
NAMES = {"chatml": "roles", "llama 3": "headers", "gemma": "model", "qwen": "default system"}
TEMPLATES = {
    (kind, marked): template(name, marked=marked)
    .replace("<|end|>{% endgeneration %}{{ '\n' }}", "<|end|>{{ '\n' }}{% endgeneration %}")
    .replace("<|end|>", "<|end|>{{ '\n' }}" if kind == "qwen" else "<|end|>")
    for kind, name in NAMES.items()
    for marked in (True, False)
}
ONE_STEP = {"max_steps": 1, "learning_rate": 1.0, "lr_scheduler_type": "constant", "warmup_steps": 0, "optim": "sgd"}
ONE_STEP |= {"max_grad_norm": 0.0, "use_cpu": True, "bf16": False, "report_to": [], "seed": 0, "logging_steps": 1}
TURNS = [
    {"prompt": [*CONVERSATION[:1]], "completion": [CONVERSATION[1]]},
    {"prompt": [*CONVERSATION[:3]], "completion": [CONVERSATION[3]]},
    {"prompt": [{"role": "user", "content": "Where?"}], "completion": [{"role": "assistant", "content": "Here"}]},
]
CHATS = [{"messages": CONVERSATION}, {"messages": CONVERSATION[:2]}]


def model_of(tokenizer: PreTrainedTokenizerFast) -> Any:
    model = tiny_model()
    torch.manual_seed(0)
    model.resize_token_embeddings(len(tokenizer))
    return model.train()


def one_step(trainer: Any) -> tuple[float, torch.Tensor]:
    """The loss and the gradient of all weights: what a step of SGD with learning rate 1 subtracts."""
    before = [weights.detach().clone() for weights in trainer.model.parameters()]
    trainer.train()
    moved = [old - new for old, new in zip(before, trainer.model.parameters(), strict=True)]
    loss = next(entry["loss"] for entry in trainer.state.log_history if "loss" in entry)
    return loss, torch.cat([change.flatten() for change in moved])


def assert_trls(rows: list[dict[str, Any]], folder: Path, kind: str, *, ours_marked: bool, **more: Any) -> None:
    """A step of ours has the loss and the gradient of TRL's, up to rounding in float32."""
    shared, size = {"assistant_only_loss": "messages" in rows[0]}, len(rows)
    own = D2EConfig(folder / "d2e", objective="sft", batch_size=size, **shared, **more, **ONE_STEP)
    theirs = trl.SFTConfig(
        str(folder / "trl"),
        per_device_train_batch_size=size,
        max_length=None,
        gradient_checkpointing=False,
        **shared,
        **ONE_STEP,
    )
    measured = []
    for trainer, args, marked in ((D2ETrainer, own, ours_marked), (trl.SFTTrainer, theirs, "messages" in rows[0])):
        tokenizer, data = template_tokenizer(TEMPLATES[kind, marked]), datasets.Dataset.from_list(rows)
        made = trainer(model_of(tokenizer), args=args, train_dataset=data, processing_class=tokenizer)
        measured.append(one_step(made))
    (loss, gradient), (trls_loss, trls_gradient) = measured
    assert loss == pytest.approx(trls_loss, rel=1e-6)
    assert (gradient - trls_gradient).norm() <= 1e-6 * trls_gradient.norm()


@pytest.mark.parametrize("kind", NAMES)
def test_answers_with_the_templates_end_of_turn_have_trls_loss_and_gradients(kind: str, tmp_path: Path) -> None:
    assert_trls(TURNS, tmp_path, kind, ours_marked=False, end_of_turn="template")


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("marked", [True, False])
def test_messages_have_trls_loss_and_gradients(kind: str, marked: bool, tmp_path: Path) -> None:
    assert_trls(CHATS, tmp_path, kind, ours_marked=marked, end_of_turn="template")


def test_without_the_line_break_of_chatml_the_loss_is_another(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="comparison failed"):
        assert_trls(TURNS, tmp_path, "chatml", ours_marked=False)


def test_the_objective_of_an_sft_config_is_sft_unless_another_is_named(tmp_path: Path) -> None:
    theirs = trl.SFTConfig(str(tmp_path), use_cpu=True, report_to=[])
    assert D2EConfig.of(theirs).d2e.objective == "sft"
    assert D2EConfig.of(theirs, objective="teacher").d2e.objective == "teacher"
