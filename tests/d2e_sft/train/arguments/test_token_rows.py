"""Rows that are tokens are checked before training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pytest
import torch

from d2e_sft import D2EConfig, D2ETrainer
from d2e_sft.util.errors import UserError
from tests.d2e_sft.train.arguments.test_inputs import ROWS, SHORT
from tests.tiny import tiny_model, tiny_tokenizer

GOOD: dict[str, Any] = {
    "original": [1, 2, 3], "imagined": [1, 2], "refined": [1, 3], "answer": [4, 5], "content": [True, False],
}  # fmt: skip


def trainer(folder: Path, rows: Any = ROWS, *, model: Any = None, given: Any = None, **arguments: Any) -> D2ETrainer:
    model, args = model or tiny_model(), D2EConfig(str(folder), **{**SHORT, **arguments})
    return D2ETrainer(model, args, train_dataset=rows, processing_class=tiny_tokenizer(), **(given or {}))


@pytest.mark.parametrize("as_dataset", [False, True])
@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"answer": []}, "row 1: `answer` is empty"),
        ({"original": [1, -2]}, "row 1: `original` has the token id -2; expected 0 to "),
        ({"imagined": [10**6]}, "row 1: `imagined` has the token id 1000000; expected 0 to "),
        ({"refined": [1.5]}, "`refined` has values of type double; expected token ids"),
        ({"content": [True]}, "row 1: `content` has 1 values; expected one for each of the 2 answer tokens"),
    ],
)
def test_a_row_of_tokens_that_does_not_fit_is_named(
    tmp_path: Path, changed: dict[str, Any], told: str, as_dataset: bool
) -> None:
    start = {**GOOD, "refined": [1.0]} if "refined" in changed else GOOD  # a column of a dataset has one type
    rows: Any = [start, {**GOOD, **changed}]
    with pytest.raises(UserError) as refused:
        trainer(tmp_path, datasets.Dataset.from_list(rows) if as_dataset else rows)
    assert f"train_dataset{', ' * told.startswith('row')}" in refused.value.message
    assert told in refused.value.message
    tensors = [{name: torch.tensor(value) for name, value in GOOD.items()}] * 2
    assert trainer(tmp_path, tensors).train().global_step == 2
