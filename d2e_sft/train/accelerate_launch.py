"""What `--launch` runs: `accelerate launch`, which says in one line which of its processes failed.

Accelerate's own ends with a stack trace of itself and a table, below which the message of the process that failed is
lost. It is run as a module, with accelerate's arguments: `python -m d2e_sft.train.accelerate_launch --config_file …`.
"""

from __future__ import annotations

import logging
import signal
import sys
from typing import TYPE_CHECKING

from d2e_sft.train.launch import exit_status

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

_OUT_OF_MEMORY = (
    "; most often the machine was out of memory\n"
    "  remedy: a smaller batch (train.micro_batch_size; d2e eval --batch-size); or to train, a launcher that\n"
    "  shares the model among the processes: --launch zero3 or fsdp2"
)


def main() -> None:
    """Run accelerate's launcher; exit with the status of the process that failed first, 128 + N after signal N."""
    from accelerate.commands.launch import main as accelerate_launch
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    # Its records of a failed process say what is said below, by pid and in another format.
    logging.getLogger("torch.distributed.elastic.multiprocessing.api").setLevel(logging.CRITICAL)
    try:
        accelerate_launch()
    except ChildFailedError as error:
        sys.exit(_say(error))
    except SignalException as error:
        sys.exit(128 + error.sigval)


def _say(error: ChildFailedError) -> int:
    rank, failure = error.get_first_failure()
    code = failure.exitcode
    if code >= 0:
        print(f"d2e: process {rank} exited with status {code}; what it said is above", file=sys.stderr)
    else:
        name = signal.Signals(-code).name
        reason = _OUT_OF_MEMORY if -code == signal.SIGKILL else ""
        print(f"d2e: error: process {rank} was ended by {name}{reason}", file=sys.stderr)
    return exit_status(code)


if __name__ == "__main__":
    main()
