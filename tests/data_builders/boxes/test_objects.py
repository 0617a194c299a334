"""The things that boxes hold."""

from __future__ import annotations

import re

from data_builders.boxes.objects import OBJECTS


def test_there_are_100_different_objects_of_one_word() -> None:
    assert len(set(OBJECTS)) == len(OBJECTS) == 100
    assert all(re.fullmatch("[a-z]+", name) for name in OBJECTS)
