"""How often an epoch shows each row if conflict rows have a share of their own (`data.balance`).

Few conflict rows among many aligned ones teach a model little about the context. Repeating them, and leaving as many
aligned rows out of each epoch, is simple data balancing (arXiv 2110.14503). Just Train Twice (arXiv 2107.09044)
repeats the rows that a first model got wrong. The loss stays as it is, and an epoch has as many rows as before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from d2e_sft.data.sample import Subset
from d2e_sft.util.errors import UserError


@dataclass(frozen=True)
class Balance:
    """The rows of a training by subset, as indices.

    Attributes:
        share: Share of conflict rows among the tagged rows (aligned and conflict) of an epoch.
        others: Rows of no subset or another one, each shown once an epoch.
    """

    share: float
    aligned: list[int]
    conflict: list[int]
    others: list[int]

    @classmethod
    def of_rows(cls, share: float | None, rows: Iterable[Mapping[str, Any]]) -> Self | None:
        """Sort training rows, as tokens, by their column `subset`; as `of`."""
        return None if share is None else cls.of(share, [row.get("subset") for row in rows], "train_dataset")

    @classmethod
    def of(cls, share: float | None, subsets: Sequence[Subset | None], name: str) -> Self | None:
        """Sort the rows by their subsets; None without a share.

        Raises UserError, with the rows' `name`, unless there are rows of both subsets.
        """
        if share is None:
            return None
        aligned, conflict, others = list[int](), list[int](), list[int]()
        for number, subset in enumerate(subsets):
            {"aligned": aligned, "conflict": conflict}.get(str(subset), others).append(number)
        if not aligned or not conflict:
            there = "aligned" if aligned else "conflict"
            found = f"each tagged row ({len(aligned or conflict)} of {len(subsets)}) is {there}"
            remedy = "leave data.balance out"
            if not aligned and not conflict:
                found = f"none of the {len(others)} rows has the subset aligned or conflict"
                remedy = f"tag the rows (d2e data tag), or {remedy}"
            raise UserError(f"{name}: {found}; data.balance={share:g} needs rows of both subsets", remedy)
        return cls(share, aligned, conflict, others)

    @property
    def conflicts_shown(self) -> int:
        """Conflict rows in an epoch, repeated ones counted each time; at least one, and at least one other row."""
        tagged = len(self.aligned) + len(self.conflict)
        return min(max(1, round(self.share * tagged)), tagged - 1)

    def drawn(self, permuted: Callable[[int], list[int]]) -> list[int]:
        """Return the rows of an epoch, in no particular order: as many as there are.

        The rows of a subset are shown equally often, or once more for some that are drawn. `permuted(n)` returns a
        random permutation of n numbers.
        """
        tagged = len(self.aligned) + len(self.conflict)
        rows = list(self.others)
        for subset, shown in ((self.conflict, self.conflicts_shown), (self.aligned, tagged - self.conflicts_shown)):
            times, rest = divmod(shown, len(subset))
            rows += subset * times + [subset[i] for i in permuted(len(subset))[:rest]]
        return rows

    def describe(self) -> str:
        """Return `conflict rows: 11 of 224, each shown about 10 times an epoch`."""
        tagged, times = len(self.aligned) + len(self.conflict), self.conflicts_shown / len(self.conflict)
        of = f"{tagged:,} tagged rows" if self.others else f"{tagged:,}"
        about = f"{times:.0f}" if times >= 3 else f"{times:.2g}"
        return f"conflict rows: {len(self.conflict):,} of {of}, each shown about {about} times an epoch"
