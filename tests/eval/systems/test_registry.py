"""The systems by name."""

from __future__ import annotations

import pytest

from eval.systems.registry import SYSTEM_NAMES, load_system
from eval.systems.system import System
from tests.eval.systems.cases import CASES


@pytest.mark.parametrize("name", SYSTEM_NAMES)
def test_a_system_is_found_by_its_name_and_its_options_have_defaults(name: str) -> None:
    system = load_system(name)
    assert isinstance(system, System)
    assert system.name == name
    assert system.options().variant == system.score_options().variant == ""


def test_every_system_has_a_case_for_the_tests_of_all_systems() -> None:
    assert {name.split()[0] for name in CASES} == set(SYSTEM_NAMES)


def test_an_unknown_name_is_none() -> None:
    with pytest.raises(KeyError):
        load_system("riddles")
