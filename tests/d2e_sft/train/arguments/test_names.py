"""Arguments of TRL: taken over, or answered by what to use here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainingArguments

from d2e_sft import D2EConfig, D2ETrainer, DecodingConfig
from d2e_sft.util.errors import UserError
from tests.tiny import tiny_model, tiny_tokenizer


def shares_of(logits: Any, targets: Any) -> Any:
    """An objective with too few arguments."""
    raise NotImplementedError


@dataclass
class SFTConfig(TrainingArguments):
    """The arguments that TRL 1.16 adds, with their defaults."""

    dataset_text_field: str = "text"
    max_length: int | None = 1024
    packing: bool = False
    packing_strategy: str = "bfd"
    padding_free: bool = False
    completion_only_loss: bool | None = None
    assistant_only_loss: bool = False
    loss_type: str = "nll"
    shuffle_dataset: bool = False
    trust_remote_code: bool = False
    router_aux_loss_coef: float | None = None


def test_a_configuration_of_trl_is_taken_over_where_it_means_the_same(tmp_path: Path) -> None:
    given = SFTConfig(
        str(tmp_path), learning_rate=0.5, max_length=77, use_cpu=True, completion_only_loss=True, shuffle_dataset=True
    )
    found = D2EConfig.of(given)
    assert (found.learning_rate, found.max_length, found.packing, found.assistant_only_loss) == (
        0.5,
        77,
        "auto",
        False,
    )
    whole = D2EConfig.of(SFTConfig(str(tmp_path), max_length=None, assistant_only_loss=True, use_cpu=True))
    assert (whole.max_length, whole.assistant_only_loss) == (1024, True)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("packing", True, "SFTConfig: packing=True of TRL is not supported\n  remedy: use packing='shared_batch'"),
        ("completion_only_loss", False, "the loss is on the answer only"),
        ("dataset_text_field", "body", "remedy: a text has no context that a view can leave out"),
        ("padding_free", True, "micro_batch_tokens=N"),
        ("loss_type", "dft", "the objective defines the loss"),
        ("router_aux_loss_coef", 0.1, "SFTConfig: router_aux_loss_coef=0.1 is not supported"),
        ("trust_remote_code", True, "remedy: leave it out: code from the Hub is not run"),
    ],
)
def test_another_argument_of_trl_is_refused_if_it_was_changed(
    tmp_path: Path, name: str, value: Any, told: str
) -> None:
    with pytest.raises(UserError) as refused:
        D2EConfig.of(SFTConfig(str(tmp_path), use_cpu=True, **{name: value}))
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("of", "name", "value", "told"),
    [
        (D2EConfig, "max_seq_length", 512, "D2EConfig: max_seq_length=512 is not supported\n  remedy: use max_length"),
        (D2EConfig, "packing", True, "D2EConfig: packing=True of TRL is not supported"),
        (D2EConfig, "completion_only_loss", False, "the loss is on the answer only"),
        (D2EConfig, "beta", 0.1, "objective='prefer' with prefer_beta"),
        (D2EConfig, "rpo_alpha", 0.1, "objective='prefer' with sft_weight"),
        (D2EConfig, "warmup_ratio", 0.1, "remedy: use warmup_steps; below 1 it is a share"),
        (D2EConfig, "prefer_form", "sigmoid", "prefer_form: got 'sigmoid'; TRL's sigmoid is 'dpo' here. Expected one"),
        (D2EConfig, "objective", shares_of, "remedy: pass 'tests.d2e_sft.train.arguments.test_names:shares_of' ("),
        (D2EConfig, "objective", lambda: 0, "remedy: pass 'module:function' ('__main__:f' for"),
        (D2EConfig, "learning_rat", 0.1, "has no argument learning_rat. Did you mean 'learning_rate'?"),
        (D2ETrainer, "formatting_func", str, "remedy: a text has no context"),
        (D2ETrainer, "tokenizer", "x", "remedy: use processing_class"),
        (D2ETrainer, "quantization_config", "x", "remedy: use D2EConfig(model_init_kwargs={"),
        (D2ETrainer, "compute_loss_func", print, "your own function is objective='module:function'"),
        (D2ETrainer, "calbacks", [], "D2ETrainer: has no argument calbacks. Did you mean 'callbacks'?"),
    ],
)
def test_names_of_others_are_answered_by_the_name_here(of: Any, name: str, value: Any, told: str) -> None:
    with pytest.raises(UserError) as refused:
        of("run", **{name: value})
    assert told in str(refused.value)


def test_a_function_of_two_arguments_is_refused_before_training(tmp_path: Path) -> None:
    args = D2EConfig(str(tmp_path), objective=f"{__name__}:shares_of", use_cpu=True)
    with pytest.raises(UserError, match=r"takes \(logits: .*; expected four arguments, \(logits, targets, content"):
        D2ETrainer(tiny_model(), args, processing_class=tiny_tokenizer())
    with pytest.raises(UserError, match="decoder: got the function shares_of; expected its name"):
        DecodingConfig(decoder=shares_of)  # type: ignore[arg-type]


def test_arguments_of_trl_that_are_none_are_left_out(tmp_path: Path) -> None:
    args = D2EConfig(str(tmp_path), use_cpu=True)
    made = D2ETrainer(tiny_model(), args, processing_class=tiny_tokenizer(), tokenizer=None, ref_model=None)
    assert made.processing_class is not None
