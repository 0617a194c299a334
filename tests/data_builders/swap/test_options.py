"""Options of swaps that contradict each other are refused."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from data_builders.swap.candidates import SwapOptions


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pools": "model"}, "swap.pools has model without one"),
        ({"pools": "lists", "model": "m"}, "expected model among them"),
        ({"dtype": "bfloat16"}, "swap.dtype without --swap-model"),
        ({"pools": "words"}, "'options', 'lists', 'dataset' or 'model'"),
    ],
)
def test_options_that_contradict_each_other(options: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        SwapOptions.model_validate(options)
