"""Notes of other libraries are dropped or shown once, and the garbage collector pauses during imports."""

from __future__ import annotations

import gc
import logging
import warnings
from collections.abc import Iterator

import pytest

from d2e_sft.util.startup import collector_paused, quieten

NAMES = ("DeepSpeed", "huggingface_hub.utils._http")


@pytest.fixture(autouse=True)
def filters() -> Iterator[None]:
    before = {name: list(logging.getLogger(name).filters) for name in NAMES}
    for name in NAMES:
        logging.getLogger(name).filters.clear()
    quieten()
    yield
    for name, kept in before.items():
        logging.getLogger(name).filters[:] = kept


def told(name: str, *messages: str) -> list[str]:
    """Those of the messages that the logger lets through, as it words them."""
    logger = logging.getLogger(name)
    records = [logger.makeRecord(name, logging.WARNING, "f", 1, message, (), None) for message in messages]
    return [record.getMessage() for record in records if logger.filter(record)]


def test_failed_attempts_are_shown_once_and_a_guess_about_gpus_not_at_all() -> None:
    failed = "'[Errno 111]' thrown while requesting HEAD https://hub/x"
    found = told(NAMES[1], failed, "Retrying in 1s [Retry 1/5].", failed, "Retrying in 2s", "else")
    assert found == [f"{failed}; trying again, up to five times a file", "else"]
    assert told("DeepSpeed", "Setting accelerator to CPU. If you have GPU, …", "out of memory") == ["out of memory"]


def test_warnings_about_calls_of_other_libraries_are_dropped_and_others_shown() -> None:
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        quieten()
        warnings.warn("`is_gradient_checkpointing` is deprecated and will be removed", FutureWarning, stacklevel=1)
        warnings.warn("Could not find a config file in x", UserWarning, stacklevel=1)
        warnings.warn("something else", UserWarning, stacklevel=1)
    assert [str(one.message) for one in shown] == ["something else"]


def test_the_collector_is_off_within_and_as_it_was_behind() -> None:
    assert gc.isenabled()
    with collector_paused():
        assert not gc.isenabled()
        with collector_paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ImportError), collector_paused():
        import no_such_module  # type: ignore[import-not-found]  # noqa: F401
    assert gc.isenabled()
