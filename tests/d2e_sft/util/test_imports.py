"""Imports with Python's garbage collector paused."""

from __future__ import annotations

import gc

import pytest

from d2e_sft.util.imports import collector_paused


def test_the_collector_is_off_within_and_as_it_was_behind() -> None:
    assert gc.isenabled()
    with collector_paused():
        assert not gc.isenabled()
        with collector_paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_the_collector_is_on_again_after_an_import_that_fails() -> None:
    with pytest.raises(ImportError), collector_paused():
        import no_such_module  # type: ignore[import-not-found]  # noqa: F401
    assert gc.isenabled()
