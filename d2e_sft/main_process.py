"""What one process finds out and all must act on alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from accelerate import PartialState
from accelerate.utils import broadcast_object_list

from d2e_sft.errors import UserError

T = TypeVar("T")


def decided_by_main(state: PartialState, decide: Callable[[], T]) -> T:
    """The main process's answer, in every process: the others neither repeat its work nor wait for it in vain.

    Raises:
        UserError, OSError: `decide` raised it in the main process.
    """
    outcome: list[T | UserError | OSError | None] = [None]
    if state.is_main_process:
        try:
            outcome = [decide()]
        except (UserError, OSError) as error:
            outcome = [error]
    broadcast_object_list(outcome)
    answer = outcome[0]
    if isinstance(answer, UserError | OSError):
        raise answer
    return answer  # type: ignore[return-value]
