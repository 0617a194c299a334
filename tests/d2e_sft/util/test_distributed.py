"""One process alone: it is the main one, agrees with itself, and hands on what it decided or could not."""

from __future__ import annotations

import pytest

from d2e_sft.util.distributed import asked_for, decided_by_main, process_state, same_everywhere
from d2e_sft.util.errors import UserError


def test_an_engine_is_asked_for_as_accelerate_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ACCELERATE_USE_FSDP", raising=False)
    assert not asked_for("FSDP")
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "True")
    assert asked_for("FSDP")


def test_one_process_decides_for_itself_or_raises_its_error() -> None:
    def refuse() -> None:
        raise UserError("no such file")

    state = process_state()
    same_everywhere(state, "the files", "abc")
    assert decided_by_main(state, lambda: 7) == 7
    with pytest.raises(UserError, match="no such file"):
        decided_by_main(state, refuse)
