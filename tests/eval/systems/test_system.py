"""Options of a benchmark, its samples and its tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest
from pydantic import Field

from d2e_sft.util.errors import UserError
from eval.systems.system import SystemCall, SystemOptions, parse_options


class Options(SystemOptions):
    shots: int = Field(3, ge=0, description="solved examples")
    file: Path | None = None
    password: str = Field("secret", exclude=True)
    draws: int = 5
    scoring: ClassVar[frozenset[str]] = frozenset(("draws",))


def test_options_are_read_from_texts() -> None:
    options = parse_options(Options, ["shots=2", "file=a/b=c.json"], "riddles")
    assert options == Options(shots=2, file=Path("a/b=c.json"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["shots"], "--set shots: expected NAME=VALUE"),
        (["=2"], "--set =2: expected NAME=VALUE"),
        (["shot=2"], "riddles has no option 'shot'. Did you mean 'shots'"),
        (["shots=1", "shots=2"], "--set shots=2: shots is given twice"),
        (["shots=few"], "shots: got 'few'"),
        (["shots=-1"], "shots: got '-1'"),
    ],
)
def test_a_wrong_option_is_one_message(given: Sequence[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_options(Options, given, "riddles")
    assert message in caught.value.message


def test_the_remedy_tells_the_options_and_their_defaults() -> None:
    with pytest.raises(UserError) as caught:
        parse_options(Options, ["shots"], "riddles")
    assert "shots=3 (solved examples); file=None; password=secret; draws=5" in str(caught.value.remedy)
    with pytest.raises(UserError) as caught:
        parse_options(SystemOptions, ["x=1"], "riddles")
    assert caught.value.remedy == "riddles has no options here"


def test_the_variant_names_what_changes_the_answers() -> None:
    assert Options().variant == ""
    assert Options(draws=9, password="other").variant == ""
    assert Options(shots=0, file=Path("data/my states.json")).variant == "shots=0-file=my_states"


def test_samples_are_drawn_with_the_seed_and_keep_their_order() -> None:
    def drawn(most: int | None, seed: int = 0) -> list[int]:
        return SystemCall(Path(), Options(), most, seed).drawn(range(100))

    assert drawn(None) == drawn(100) == drawn(200) == list(range(100))
    some = drawn(10)
    assert len(set(some)) == 10
    assert some == sorted(some) == drawn(10)
    assert some != drawn(10, seed=1)
