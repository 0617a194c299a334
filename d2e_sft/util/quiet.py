"""What other libraries say on the command line that tells its user nothing, or the same again and again."""

from __future__ import annotations

import logging
import os
import warnings

_TRIED_AGAIN = ("Retrying in ", "thrown while requesting")
# Category and beginning of warnings about what a user of the command line did not write and cannot change.
_WARNINGS: tuple[tuple[type[Warning], str], ...] = (
    (UserWarning, "Could not find a config file"),  # peft, of a base model that is no repository of the Hub
    (FutureWarning, ".*gradient_checkpointing.* is deprecated"),  # transformers, of its own trainer's calls
)


def quieten() -> None:
    """Drop or shorten those notes; of this process, before the libraries are imported.

    - DeepSpeed's guess that a machine without a GPU has none.
    - The Hub's client says of each of its attempts that it failed: the first one is told.
    - Warnings about other libraries' own calls.
    - Torch's profiler, that it starts and stops.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    logging.getLogger("DeepSpeed").addFilter(lambda record: "Setting accelerator to CPU" not in record.getMessage())
    logging.getLogger("huggingface_hub.utils._http").addFilter(_Once())
    for category, message in _WARNINGS:
        warnings.filterwarnings("ignore", message=message, category=category)


class _Once(logging.Filter):
    """Lets the first note of a failed attempt through, and says what it means."""

    def __init__(self) -> None:
        super().__init__()
        self._told = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is shown."""
        if not any(text in record.getMessage() for text in _TRIED_AGAIN):
            return True
        told, self._told = self._told, True
        if not told:
            record.msg, record.args = f"{record.getMessage()}; trying again, up to five times a file", ()
        return not told
