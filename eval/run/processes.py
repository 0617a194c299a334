"""The processes of an evaluation, one or many, and the share of each."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from d2e_sft.util.errors import UserError

if TYPE_CHECKING:
    from accelerate import PartialState

T = TypeVar("T")
# Processes may end hours apart, and the first must not give the others up as dead.
_PATIENCE = timedelta(days=30)


@dataclass(frozen=True)
class Processes:
    """This process among those of a launch, the number `index` of `count`.

    Attributes:
        state: None where there is but one, and nothing to join.
    """

    state: PartialState | None = None
    index: int = 0
    count: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this one decides, prints and merges."""
        return self.index == 0

    def decided_by_main(self, decide: Callable[[], T]) -> T:
        """The main process's answer, or its error, in every process."""
        if self.state is None:
            return decide()
        from d2e_sft.util.distributed import decided_by_main

        return decided_by_main(self.state, decide)

    def wait(self) -> None:
        """Wait until every process has come to this point."""
        if self.state is not None:
            self.state.wait_for_everyone()


def join_processes(engine: str) -> Processes:
    """The processes that an evaluation with this engine runs on.

    Raises:
        UserError: several were launched, and the engine does not share its work between processes, or they did not
            find each other.
    """
    if engine == "transformers":
        from d2e_sft.util.distributed import process_state

        state = process_state(patience=_PATIENCE)
        return Processes(state, state.process_index, state.num_processes)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        own = "--tensor-parallel N" if engine == "vllm" else "--concurrency N"
        raise UserError(
            f"--engine {engine} on {os.environ['WORLD_SIZE']} processes: expected one, which spreads its work itself",
            remedy=f"run it without a launcher, and use {own}",
        )
    return Processes()


def share(
    lengths: Sequence[int],
    done: AbstractSet[int],
    *,
    groups: Sequence[Hashable],
    batch_size: int,
    process: int,
    processes: int,
) -> list[int]:
    """The indices of the samples that a process decodes.

    Samples are put in the order in which one process would decode them, group by group and longest first, and cut into
    its batches; whole batches are then dealt out. So every process gets its part of long and of short ones, and a
    batch holds the same samples, and rounds in the same way, whatever the number of processes.

    Args:
        lengths: of the prompts of all samples, in the unit in which work is to be shared evenly.
        done: indices of samples that need no decoding.
        groups: the group of each sample; those of a group are decoded together, as their prompts begin alike.
    """
    members: dict[Hashable, list[int]] = {}
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i], reverse=True):
        members.setdefault(groups[i], []).append(i)
    batches = [
        order[start : start + batch_size] for order in members.values() for start in range(0, len(order), batch_size)
    ]
    left = [[i for i in batch if i not in done] for batch in batches]
    return [i for batch in [batch for batch in left if batch][process::processes] for i in batch]
