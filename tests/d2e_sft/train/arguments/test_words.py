"""Mistakes in a script are answered in its own words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas
import pytest
from peft import LoraConfig, get_peft_model

from d2e_sft import answer_samples
from d2e_sft.util.errors import UserError
from tests.d2e_sft.train.arguments.test_inputs import ROWS
from tests.d2e_sft.train.arguments.test_token_rows import GOOD, trainer
from tests.tiny import tiny_model, tiny_tokenizer


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"rows": [{**GOOD, "answer": 3}]}, "train_dataset: got 3 in `answer`; expected a list"),
        ({"rows": [GOOD, {"original": [1], "answer": [2]}]}, "train_dataset, row 1: no `imagined`"),
        ({"rows": [{"question": "how many?", "answer": 3}]}, "row 0: `answer`: got 3, of type int; expected text"),
        ({"rows": pandas.DataFrame(ROWS)}, "remedy: use datasets.Dataset.from_pandas(rows)"),
        ({"rows": [{"chosen": "a", "rejected": "b"}]}, "remedy: add the column prompt"),
        ({"max_length": 30}, "exceed max_length=30 tokens in their longest view"),
        ({"max_length": 30}, "the first is row 0)"),
        ({"max_length": 30}, "or set overlong='drop' or overlong='truncate_context'"),
        ({"objective": "prefer"}, "objective=prefer: no training row has a rejected answer"),
        ({"given": {"peft_config": "lora"}}, "peft_config: got a str; expected one of peft"),
        ({"given": {"model_init": tiny_model}}, "remedy: give the model, or its name, as `model`"),
        ({"batch_size": "8"}, "batch_size: got '8', which is text; expected a number"),
        ({"learning_rate": "1e-5"}, "learning_rate: got '1e-5', which is text; expected a number"),
        ({"save_total_limit": 0}, "save_total_limit: got 0; Input should be greater than or equal to 1"),
        ({"completion_only_loss": False}, "the loss is on the answer only"),
        ({"objective": "__main__:gone"}, "has no function 'gone'\n  remedy: a function of another script: move it"),
    ],
)
def test_a_mistake_is_answered_in_pythons_words(tmp_path: Path, options: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError) as refused:
        trainer(tmp_path, **options)
    assert told in str(refused.value)


def test_an_adapter_on_an_adapter_is_refused(tmp_path: Path) -> None:
    config = LoraConfig(r=2, target_modules="all-linear")
    with pytest.raises(UserError, match="the model has an adapter already"):
        trainer(tmp_path, model=get_peft_model(tiny_model(), config), given={"peft_config": config})


def test_sets_lengths_and_metrics_of_another_kind_are_refused(tmp_path: Path) -> None:
    made = trainer(tmp_path, given={"eval_dataset": {"near": ROWS[:2]}})
    made.compute_metrics = lambda found: found.predictions.argmax(-1)
    for call, told in (
        (lambda: made.predict("naer"), "the name of a set in eval_dataset: near. Did you mean 'near'?"),
        (lambda: made.predict(None), "test_dataset: got None; expected rows"),
        (lambda: made.evaluate(ROWS[:1]), "compute_metrics: 'list' object has no attribute 'argmax'; it gets answers"),
        (lambda: answer_samples(made.model, tiny_tokenizer(), ROWS, max_length=-1), "max_length: got -1"),
        (lambda: answer_samples(made.model, tiny_tokenizer(), ROWS, prompt_set=3), "prompt_set: got 3"),  # type: ignore[arg-type]
    ):
        with pytest.raises(UserError) as refused:
            call()
        assert told in str(refused.value)


def test_rows_without_contexts_are_told_even_if_nothing_else_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"question": "What rose?", "answer": "the river"}] * 2
    for objective in ("sft", "d2e"):
        trainer(tmp_path / objective, rows, objective=objective, log_level="error").train()
        told = " ".join(capsys.readouterr().err.split())
        assert ("no training row has a context, so the objective d2e has nothing" in told) == (objective == "d2e")
    assert "or set objective='sft'" in told


def test_an_evaluation_shows_the_values_of_the_users_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = {"eval_dataset": ROWS[:2], "compute_metrics": lambda found: {"mine": 0.25, "eval_rows": len(found[0])}}
    trainer(tmp_path, given=given, disable_tqdm=False, eval_steps=2).train()
    assert ", mine 0.25, rows 2\n" in capsys.readouterr().out + capsys.readouterr().err
