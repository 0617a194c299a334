"""What a user is shown: the problem, a remedy, and the nearest known name."""

from __future__ import annotations

import pytest

from d2e_sft.util.errors import UserError, did_you_mean


def test_a_remedy_stands_on_a_line_of_its_own() -> None:
    assert str(UserError("no such file: x")) == "no such file: x"
    assert str(UserError("no such file: x", "name another")) == "no such file: x\n  remedy: name another"


@pytest.mark.parametrize(
    ("name", "said"), [("boxs", " Did you mean 'boxes'?"), ("boxes", " Did you mean 'boxes'?"), ("qqq", "")]
)
def test_the_nearest_known_name_is_suggested(name: str, said: str) -> None:
    assert did_you_mean(name, ["wiqa", "boxes"]) == said
