"""Before other libraries are imported: silence their uninformative notes, and import them faster."""

from __future__ import annotations

import gc
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_RETRIES = ("Retrying in ", "thrown while requesting")
# Category and message of warnings about calls that a user of the command line did not write.
_WARNINGS: tuple[tuple[type[Warning], str], ...] = (
    (UserWarning, "Could not find a config file"),  # peft, for a base model that is not on the Hub
    (FutureWarning, ".*gradient_checkpointing.* is deprecated"),  # transformers, about its own trainer
)


def quieten() -> None:
    """Drop other libraries' notes that say nothing about the user's call; failed downloads are reported once."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler
    logging.getLogger("DeepSpeed").addFilter(lambda record: "Setting accelerator to CPU" not in record.getMessage())
    logging.getLogger("huggingface_hub.utils._http").addFilter(_FirstRetry())
    for category, message in _WARNINGS:
        warnings.filterwarnings("ignore", message=message, category=category)


class _FirstRetry(logging.Filter):
    """Passes the first note about a failed request and explains it."""

    def __init__(self) -> None:
        super().__init__()
        self._seen = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is shown."""
        if not any(text in record.getMessage() for text in _RETRIES):
            return True
        seen, self._seen = self._seen, True
        if not seen:
            record.msg, record.args = f"{record.getMessage()}; trying again, up to five times a file", ()
        return not seen


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause Python's garbage collector, to import torch and transformers within.

    They create hundreds of thousands of objects, none of them garbage. Repeated collections over them take a fifth of
    the import time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
