"""Every door takes the same debias ratios: numbers from 0 to 10, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner
from pydantic import ValidationError

from d2e_sft import cli
from d2e_sft.config.decoding import MAX_ALPHA, DecodingConfig
from d2e_sft.config.recipe import D2ESection, Recipe
from d2e_sft.decoding.decoders import named_decoder
from d2e_sft.hub.custom_generate import generate as pushed
from d2e_sft.util.errors import UserError
from d2e_sft.vllm.pairing import PairedRow, read_row


def _eval_section(alpha: float) -> Any:
    sections = {"model": {"name": "x"}, "data": {"train": "x"}, "train": {"output_dir": "x"}}
    return Recipe.model_validate({**sections, "eval": {"alpha": alpha}})


def _row(alpha: float) -> Any:
    row = PairedRow(pair="p", view="original", alpha=alpha, sentinel=0, done=0, min_tokens=0, stops=())
    return read_row(row.as_extra_args())


DOORS: dict[str, Callable[[float], Any]] = {
    "training": lambda alpha: D2ESection(alpha=alpha),
    "a recipe's eval.alpha": _eval_section,
    "decoding in process": lambda alpha: DecodingConfig(alpha=alpha),
    "--decoder": lambda alpha: named_decoder(f"d2e:alpha={alpha}"),
    "a row in vLLM": _row,
}


@pytest.mark.parametrize("door", DOORS)
def test_ratios_from_0_to_10_are_taken_and_any_other_is_refused(door: str) -> None:
    for alpha in (0.0, 0.5, MAX_ALPHA):
        DOORS[door](alpha)
    for alpha in (-0.01, 10.01, math.nan, math.inf):
        with pytest.raises((UserError, ValidationError, ValueError)):
            DOORS[door](alpha)


@pytest.mark.parametrize(
    ("line", "alpha"),
    [
        ("eval x --bench y", "-0.01"),
        ("predict x y --out z", "10.01"),
        ("chat x", "nan"),
        ("serve x", "inf"),
        ("inspect x", "nan"),
        ("demo x", "10.01"),
    ],
)
def test_the_command_line_refuses_it(line: str, alpha: str) -> None:
    verb, *words = line.split()
    done = CliRunner().invoke(cli.d2e, [verb, "--alpha", alpha, *words])
    assert done.exit_code != 0
    assert "alpha" in done.output
    assert "range" in done.output


def test_a_pushed_model_has_the_same_bound() -> None:
    assert pushed._MAX_ALPHA == MAX_ALPHA
