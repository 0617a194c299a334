"""Silence uninformative notes of other libraries, and import them without garbage collections."""

from __future__ import annotations

import gc
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_MANY = 100  # modules, of a large library
_RETRIES = ("Retrying in ", "thrown while requesting")
# Category and message of warnings about calls that users did not write.
_WARNINGS: tuple[tuple[type[Warning], str], ...] = (
    (UserWarning, "Could not find a config file"),  # peft, for a base model that is not on the Hub
    (FutureWarning, ".*gradient_checkpointing.* is deprecated"),  # transformers, about its own trainer and peft
)


def quieten() -> None:
    """Drop other libraries' notes that say nothing about the user's call; failed downloads are reported once."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler
    logging.getLogger("DeepSpeed").addFilter(lambda record: "Setting accelerator to CPU" not in record.getMessage())
    logging.getLogger("huggingface_hub.utils._http").addFilter(_FirstRetry())
    _ignore_warnings()


@contextmanager
def without_notes() -> Iterator[None]:
    """Call another library without its warnings about its own calls, for users who call this package from Python."""
    with warnings.catch_warnings():
        _ignore_warnings()
        yield


@contextmanager
def bars_if_slow() -> Iterator[None]:
    """Let transformers show its progress bars inside only in a terminal, and only after three seconds."""
    from transformers.utils import logging

    before = logging.set_tqdm_hook(lambda bar, given, options: bar(*given, **options, delay=3.0, disable=None))
    try:
        yield
    finally:
        logging.set_tqdm_hook(before)


def _ignore_warnings() -> None:
    for category, message in _WARNINGS:
        warnings.filterwarnings("ignore", message=message, category=category)


class _FirstRetry(logging.Filter):
    """Passes the first note about a failed request and explains it."""

    def __init__(self) -> None:
        super().__init__()
        self._seen = False

    def filter(self, record: logging.LogRecord) -> bool:
        if not any(text in record.getMessage() for text in _RETRIES):
            return True
        seen, self._seen = self._seen, True
        if not seen:
            record.msg, record.args = f"{record.getMessage()}; trying again, up to five times a file", ()
        return not seen


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause Python's garbage collector, to import torch and transformers within; later collections pass them over.

    They create hundreds of thousands of objects, none of them garbage. Repeated collections over them take a fifth of
    the import time, and each one afterwards a third of a second.
    """
    was_enabled, modules = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) - modules > _MANY:
            gc.freeze()
        if was_enabled:
            gc.enable()
