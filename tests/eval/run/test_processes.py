"""How the rows of a benchmark are shared out to processes."""

from __future__ import annotations

import random

import pytest

from d2e_sft.util.errors import UserError
from eval.run.processes import Processes, join_processes, share

LENGTHS = [random.Random(0).randrange(50, 900) for _ in range(103)]
GROUPS = [random.Random(i).choice("aab") for i in range(103)]


def shares(processes: int, done: frozenset[int] = frozenset()) -> list[list[int]]:
    return [share(LENGTHS, GROUPS, 4, done, Processes(index=i, count=processes)) for i in range(processes)]


@pytest.mark.parametrize("processes", [1, 2, 3, 8])
def test_every_row_is_decoded_by_one_process(processes: int) -> None:
    assert sorted(i for part in shares(processes) for i in part) == list(range(len(LENGTHS)))


def test_what_was_decoded_is_left_out() -> None:
    done = frozenset(range(0, 103, 3))
    assert sorted(i for part in shares(3, done) for i in part) == [i for i in range(103) if i % 3]


def test_every_process_gets_its_part_of_long_and_short_rows() -> None:
    lengths = [random.Random(1).randrange(50, 900) for _ in range(1000)]
    parts = [share(lengths, [0] * 1000, 4, set(), Processes(index=i, count=4)) for i in range(4)]
    tokens = [sum(lengths[i] for i in part) for part in parts]
    assert max(tokens) < 1.05 * min(tokens)


def test_batches_hold_the_same_rows_whatever_the_number_of_processes() -> None:
    def batches(processes: int) -> set[tuple[int, ...]]:
        # As decoding cuts them: the rows of a group longest first, in fours.
        found = set()
        for part in shares(processes):
            for group in "ab":
                members = [i for i in part if GROUPS[i] == group]
                rows = sorted(members, key=lambda i: LENGTHS[i], reverse=True)
                found |= {tuple(rows[start : start + 4]) for start in range(0, len(rows), 4)}
        return found

    assert batches(2) == batches(1) == batches(5)


@pytest.mark.parametrize(("engine", "own"), [("vllm", "--tensor-parallel"), ("openai", "--concurrency")])
def test_engines_that_spread_their_work_refuse_several_processes(
    monkeypatch: pytest.MonkeyPatch, engine: str, own: str
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match=f"on 2 processes[\\s\\S]*{own}"):
        join_processes(engine)
