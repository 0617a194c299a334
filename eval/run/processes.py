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
    import torch
    from accelerate import PartialState

T = TypeVar("T")
# Processes may end hours apart; the first must not time out.
_PATIENCE = timedelta(days=30)


@dataclass(frozen=True)
class Processes:
    """This process among those of a launch: number `index` of `count`; a single process has no `state`."""

    state: PartialState | None = None
    index: int = 0
    count: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this process decides, prints and merges."""
        return self.index == 0

    @property
    def device(self) -> torch.device:
        from d2e_sft.util.distributed import process_state

        return (self.state or process_state(patience=_PATIENCE)).device

    def broadcast_from_main(self, decide: Callable[[], T]) -> T:
        """Run `decide` in the main process; its result or error reaches every process."""
        if self.state is None:
            return decide()
        from d2e_sft.util.distributed import broadcast_from_main

        return broadcast_from_main(self.state, decide)

    def wait(self) -> None:
        if self.state is not None:
            self.state.wait_for_everyone()


def join_processes(engine: str) -> Processes:
    """The processes of an evaluation with this engine; a single one needs neither torch nor accelerate for it."""
    launched = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if engine == "transformers" and launched:
        from d2e_sft.util.distributed import process_state

        state = process_state(patience=_PATIENCE)
        return Processes(state, state.process_index, state.num_processes)
    if launched:
        option = "--tensor-parallel N" if engine == "vllm" else "--concurrency N"
        raise UserError(
            f"--engine {engine} on {os.environ['WORLD_SIZE']} processes: expected one, as it shares its work itself",
            remedy=f"run it without a launcher, and use {option}",
        )
    return Processes()


def share(
    lengths: Sequence[int], groups: Sequence[Hashable], together: int, done: AbstractSet[int], processes: Processes
) -> dict[int, int]:
    """The places of the prompts that this process decodes, by length and group of all prompts, without those `done`.

    Each place has its rank among all prompts, which seeds its draws whoever decodes it.
    Prompts are ordered as one process would decode them, by group and longest first, and cut into its batches; whole
    batches are then dealt out. So every process gets long and short prompts, and batches, with their rounding, do not
    depend on the number of processes.
    """
    members: dict[Hashable, list[int]] = {}
    for place in sorted(range(len(lengths)), key=lambda place: lengths[place], reverse=True):
        members.setdefault(groups[place], []).append(place)
    batches = [order[i : i + together] for order in members.values() for i in range(0, len(order), together)]
    ranks = {place: rank for rank, place in enumerate(place for batch in batches for place in batch)}
    left = [[place for place in batch if place not in done] for batch in batches]
    mine = list(filter(None, left))[processes.index :: processes.count]
    return {place: ranks[place] for batch in mine for place in batch}
