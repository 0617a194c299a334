"""What a user can set of decoding is checked once, wherever it comes from."""

from __future__ import annotations

import re
from typing import Any

import pytest

from d2e_sft.config.decoding import DecodingConfig, check_alpha
from d2e_sft.util.errors import UserError


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_beams": 4}, "num_beams=4: debiased decoding has no beam search"),
        ({"temperature": -0.1}, "temperature=-0.1: out of range; expected 0 or more"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"top_p": 0.0}, "top_p=0.0: out of range; expected above 0"),
        ({"top_k": -1}, "top_k=-1"),
        ({"plausibility": 1.1}, "plausibility=1.1: out of range; expected 0 to 1"),
        ({"plausibility": "much"}, "plausibility=much: out of range"),
        ({"max_new_tokens": 0}, "max_new_tokens=0"),
        ({"batch_size": 0}, "batch_size=0: out of range; expected 1 or more"),
        ({"alpha": -0.5}, "alpha=-0.5: not a debias ratio"),
        ({"stop_strings": "end"}, "stop_strings='end': expected a list"),
        ({"stop_strings": [""]}, "stop_strings=['']: expected a list"),
    ],
)
def test_options_out_of_range_are_refused_by_name(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=re.escape(said)):
        DecodingConfig(**options)


def test_a_misspelt_option_is_refused() -> None:
    with pytest.raises(TypeError, match="temprature"):
        DecodingConfig(temprature=1.0)


@pytest.mark.parametrize("alpha", [0, 0.5, 2, 1e7])
def test_a_debias_ratio_is_any_finite_number_from_0_on(alpha: float) -> None:
    check_alpha(alpha)


@pytest.mark.parametrize("alpha", [-1e-9, float("inf"), float("nan"), "0.5", True, None])
def test_what_is_no_debias_ratio_is_refused(alpha: Any) -> None:
    with pytest.raises(UserError, match="not a debias ratio; expected a finite number, 0 or more"):
        check_alpha(alpha)
