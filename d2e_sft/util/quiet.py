"""What other libraries say on the command line that tells its user nothing, or the same again and again."""

from __future__ import annotations

import logging
import warnings

_TRIED_AGAIN = ("Retrying in ", "thrown while requesting")


def quieten() -> None:
    """Drop or shorten those notes; of this process, before the libraries are imported.

    - DeepSpeed's guess that a machine without a GPU has none.
    - The Hub's client says of each of its attempts that it failed: the first one is told.
    - peft's note that a base model which is no folder of the Hub has no configuration there.
    """
    logging.getLogger("DeepSpeed").addFilter(lambda record: "Setting accelerator to CPU" not in record.getMessage())
    logging.getLogger("huggingface_hub.utils._http").addFilter(_Once())
    warnings.filterwarnings("ignore", message="Could not find a config file", module="peft")


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
