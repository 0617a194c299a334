"""Importing much at once."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Import torch and transformers within this: Python's garbage collector waits.

    They leave hundreds of thousands of objects, none of them garbage, and the collector would walk over all that are
    there time and again: a fifth of the time of these imports.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
