"""What a user can set of decoding is checked once, wherever it comes from."""

from __future__ import annotations

import re
from typing import Any

import pytest

from d2e_sft.config.decoding import DECODERS, DecodingConfig, check_alpha, describe
from d2e_sft.util.errors import UserError


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_beams": 4}, "num_beams=4 with debiased decoding: beam search is for plain greedy decoding"),
        ({"num_beams": 4, "decoder": "cad"}, "num_beams=4 with debiased decoding"),
        ({"num_beams": 4, "alpha": 0, "temperature": 1}, "num_beams=4 with temperature=1"),
        ({"num_beams": 0}, "num_beams=0: out of range; expected 1 or more"),
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


@pytest.mark.parametrize("alpha", [-1e-9, 10.1, float("inf"), float("nan"), "0.5", True, None])
def test_a_debias_ratio_is_a_number_from_0_to_10(alpha: Any) -> None:
    for number in (0, 0.5, 2, 10):
        check_alpha(number)
    with pytest.raises(UserError, match="not a debias ratio; expected a number from 0 to 10"):
        check_alpha(alpha)


@pytest.mark.parametrize(
    ("decoder", "kept", "alpha"),
    [
        ("d2e", "d2e", 0.4),
        ("d2e:alpha=0.7", "d2e", 0.7),
        ("plain", "plain", 0.0),
        ("cad", "cad:weight=1", 0.0),
        ("cad:weight=0.50", "cad:weight=0.5", 0.0),
        ("my.decoders:mine:k=3:j=0.5", "my.decoders:mine:k=3,j=0.5", 0.0),
        ("my.decoders:mine:k=3,j=0.5", "my.decoders:mine:k=3,j=0.5", 0.0),
        ("my.decoders:mine", "my.decoders:mine", 0.0),
    ],
)
def test_a_decoder_is_kept_with_its_options_spelt_out(decoder: str, kept: str, alpha: float) -> None:
    config = DecodingConfig(alpha=0.4, decoder=decoder)
    assert (config.decoder, config.alpha) == (kept, alpha)
    assert DecodingConfig(alpha=config.alpha, decoder=config.decoder) == config


@pytest.mark.parametrize(
    ("decoder", "said"),
    [
        ("adcad", "Did you mean 'adacad'?"),
        ("", "decoder '': no such decoder"),
        ("no module:f", "decoder 'no module:f': no such decoder"),
        ("cad:wieght=1", "cad has no option 'wieght'; it has weight [1]. Did you mean 'weight'?"),
        ("cad:1", "cad has no option '1'; it has weight [1]"),
        ("plain:alpha=1", "plain has no option 'alpha'; it has none"),
        ("cad:weight", "decoder 'cad:weight': got 'weight'; expected KEY=VALUE"),
        ("cad:weight=much", "weight=much: out of range; expected a finite number, 0 or more"),
        ("cad:weight=inf", "weight=inf: out of range"),
        ("grd", "or a custom module:function (examples/decoders.py has some)"),
        ("d2e:alpha=-1", "alpha=-1: out of range"),
    ],
)
def test_no_such_decoder_or_option_is_said_with_what_there_is(decoder: str, said: str) -> None:
    with pytest.raises(UserError, match=re.escape(said)):
        DecodingConfig(decoder=decoder)


def test_plain_decoding_alone_needs_no_imagined_view() -> None:
    needing = {name for name in DECODERS if DecodingConfig(decoder=name).needs_imagined}
    assert needing == set(DECODERS) - {"plain"}
    assert not DecodingConfig(alpha=0).needs_imagined
    assert DecodingConfig(decoder="mine:f").needs_imagined


@pytest.mark.parametrize(
    ("config", "record", "words"),
    [
        (DecodingConfig(alpha=0), {"alpha": 0}, "plainly"),
        (DecodingConfig(decoder="plain"), {"alpha": 0.0}, "plainly"),
        (DecodingConfig(alpha=0.5), {"alpha": 0.5}, "debiased with α = 0.5"),
        (
            DecodingConfig(alpha=0.5, plausibility=0.1),
            {"alpha": 0.5, "plausibility": 0.1},
            "debiased with α = 0.5 and a plausibility cut-off of 0.1",
        ),
        (
            DecodingConfig(decoder="adacad", plausibility=0.1),
            {"alpha": None, "decoder": "adacad:floor=0", "plausibility": 0.1},
            "with adacad:floor=0 and a plausibility cut-off of 0.1",
        ),
    ],
)
def test_a_record_holds_what_is_not_the_default_and_is_put_into_words(
    config: DecodingConfig, record: dict[str, Any], words: str
) -> None:
    assert config.record() == record
    assert describe({**record, "model": "m"}) == words
