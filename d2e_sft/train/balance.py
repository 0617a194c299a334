"""How often an epoch shows each row if conflict rows have a share of their own (`data.balance`).

Few conflict rows among many aligned ones teach a model little about the context. Repeating them, and leaving as many
aligned rows out of each epoch, is simple data balancing (arXiv 2110.14503). Just Train Twice (arXiv 2107.09044)
repeats the rows that a first model got wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from d2e_sft.util.errors import UserError


@dataclass(frozen=True)
class Balance:
    """The rows of a training by subset, as indices; `shown` are the conflict rows of an epoch, with repetitions."""

    conflict: list[int]
    aligned: list[int]
    others: list[int]
    shown: int

    @classmethod
    def of(cls, share: float | None, rows: Iterable[Mapping[str, Any]], name: str = "train_dataset") -> Self | None:
        """Sort rows by their column `subset`; None without a share.

        Raises UserError, with the rows' `name`, unless there are rows of both subsets.
        """
        if share is None:
            return None
        by_subset: dict[str, list[int]] = {"conflict": [], "aligned": [], "": []}
        for number, row in enumerate(rows):
            by_subset.get(str(row.get("subset")), by_subset[""]).append(number)
        conflict, aligned, others = by_subset.values()
        tagged, remedy = len(conflict) + len(aligned), "leave data.balance out"
        if not conflict or not aligned:
            found = f"each tagged row ({tagged} of {tagged + len(others)}) is {'aligned' if aligned else 'conflict'}"
            if not tagged:
                found = f"none of the {len(others)} rows has the subset aligned or conflict"
                remedy = f"tag the rows (d2e data tag), or {remedy}"
            raise UserError(f"{name}: {found}; data.balance={share:g} needs rows of both subsets", remedy)
        return cls(conflict, aligned, others, min(max(1, round(share * tagged)), tagged - 1))

    def drawn(self, permuted: Callable[[int], list[int]]) -> list[int]:
        """Return the rows of an epoch, in no particular order: as many as there are, other rows once.

        The rows of a subset are shown equally often, or once more for some that are drawn. `permuted(n)` returns a
        random permutation of n numbers.
        """
        rows, tagged = list(self.others), len(self.conflict) + len(self.aligned)
        for subset, shown in ((self.conflict, self.shown), (self.aligned, tagged - self.shown)):
            times, rest = divmod(shown, len(subset))
            rows += subset * times + [subset[i] for i in permuted(len(subset))[:rest]]
        return rows

    def describe(self) -> str:
        """Return `conflict rows: 11 of 224, each shown about 10 times an epoch`."""
        tagged, times = len(self.aligned) + len(self.conflict), self.shown / len(self.conflict)
        of = f"{tagged:,} tagged rows" if self.others else f"{tagged:,}"
        about = f"{times:.0f}" if times >= 3 else f"{times:.2g}"
        return f"conflict rows: {len(self.conflict):,} of {of}, each shown about {about} times an epoch"
