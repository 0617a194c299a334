"""What a process does first: silence other libraries, import them without garbage collections, count its cores."""

import gc
import importlib
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from d2e_sft.util.terminal import is_quiet

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
def bars_if_slow(*, shown: bool = True) -> Iterator[None]:
    """Show transformers' progress bars inside only in a terminal, after three seconds, and if they are wanted."""
    from transformers.utils import logging

    off = True if is_quiet() or not shown else None  # None: unless it is a terminal
    before = logging.set_tqdm_hook(lambda bar, arguments, options: bar(*arguments, **options, delay=3.0, disable=off))
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


def preload(library: str) -> None:
    """Import a library without Python's garbage collector; later collections pass its objects over.

    torch and transformers create hundreds of thousands of objects, none of them garbage. Repeated collections over
    them take a fifth of the import time, and each one afterwards a third of a second.
    """
    was_enabled, modules = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        importlib.import_module(library)
    finally:
        if len(sys.modules) - modules > _MANY:
            gc.freeze()
        if was_enabled:
            gc.enable()


def usable_cores() -> int:
    """Return the number of cores that this process may use, which are fewer than the machine's in many containers."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
