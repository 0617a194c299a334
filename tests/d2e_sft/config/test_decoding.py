"""Options of decoding, and functions of the user's own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from d2e_sft.config.decoding import DECODERS, DecodingConfig, describe
from d2e_sft.config.functions import load_function


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


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def test_it_is_found_in_the_working_folder_and_in_packages_there(folder: Path) -> None:
    (folder / "mine_one.py").write_text("def twice(x):\n    return 2 * x\n", encoding="utf-8")
    (folder / "mine_two").mkdir()
    (folder / "mine_two" / "part.py").write_text("def thrice(x):\n    return 3 * x\n", encoding="utf-8")
    assert load_function("mine_one:twice", "decoder")(4) == 8
    assert load_function("mine_two.part:thrice", "decoder")(4) == 12


def test_an_installed_module_comes_before_one_of_the_same_name_here(folder: Path) -> None:
    (folder / "fractions.py").write_text("gcd = None\n", encoding="utf-8")
    assert load_function("fractions:Fraction", "decoder")(1, 2) == 0.5
