"""Plain SFT equals TRL's SFTTrainer in loss and gradients, with what the chat template writes after an answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from d2e_sft.train.config import D2EConfig
from d2e_sft.train.trainer import D2ETrainer
from tests.chat_templates import CONVERSATION, template, template_tokenizer
from tests.tiny import tiny_model

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
