"""Progress of long work, on stderr: a bar in a terminal, now and then a line in a log, nothing with `--quiet`."""

import math
import os
import sys
import time
from typing import Any

from tqdm import tqdm

from d2e_sft.util.terminal import is_quiet

_FIRST, _LONGEST = 5.0, 120.0  # seconds to the first line in a log, and most seconds between two


class Progress(tqdm):
    """tqdm's bar, which the main process shows; in a log it is a line after 5 seconds, then ever more rarely."""

    def __init__(self, *args: Any, **options: Any) -> None:
        options = {"leave": False, "dynamic_ncols": True, "file": sys.stderr, **options}
        if is_quiet() or os.environ.get("RANK", "0") != "0":
            options["disable"] = True
        self.in_log = not options["file"].isatty()
        self._pause, self._next, self._told = _FIRST, time.monotonic() + _FIRST, time.monotonic()
        if self.in_log:
            options |= {"ncols": 0, "dynamic_ncols": False}
        super().__init__(*args, **options)

    def display(self, msg: str | None = None, pos: int | None = None) -> Any:
        """Show the bar; in a log write a line if it is time for one."""
        if not self.in_log:
            return super().display(msg, pos)
        now = time.monotonic()
        if now >= self._next:
            self._pause = min(2 * self._pause, _LONGEST)
            self._next = now + self._pause
            self.fp.write(f"{self}\n")
            self.fp.flush()
        return True

    def update(self, n: float | None = 1) -> bool | None:
        """Count `n` more. A call with 0 shows the bar again after a second, so that its speed is current."""
        shown, now = super().update(n), time.monotonic()
        if shown or now - self._told >= 1:
            self._told = now
            if not shown:
                self.refresh()
        return shown

    def clear(self, *args: Any, **options: Any) -> None:
        """Remove the bar, to write above it; in a log nothing is to be removed."""
        if not self.in_log:
            super().clear(*args, **options)

    def close(self) -> None:
        """End it; in a log without another line."""
        if self.in_log:
            self.delay = math.inf
        super().close()
