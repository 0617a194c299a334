"""Rows with two passages: the published one, and one in which the answer was exchanged for another."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from d2e_sft.data.sample import Subset
from data_builders.sources.rows import Draft, RawRow, SourceOptions

Passage = tuple[str, Collection[str]]  # a text, and the accepted answers that it gives


class PairOptions(SourceOptions):
    """Options of changed passages; `aligned` also reads the published passage of each, with its own answer."""

    aligned: bool = False


def passages(
    row: RawRow, name: str, published: Passage, changed: Passage, *, aligned: bool = True, **parts: Any
) -> Iterator[Draft]:
    """Yield the `aligned` draft of a row, if it is wanted, and its `conflict` draft.

    The habit of both is the published answer. `name` begins their ids; `parts` are further parts of both.
    """
    found: dict[Subset, Passage] = {"aligned": published} if aligned else {}
    for subset, (context, answers) in {**found, "conflict": changed}.items():
        own = {"context": context, "answers": dict.fromkeys(answers), "habit": dict.fromkeys(published[1])}
        yield row.draft(id=f"{name}-{subset}", relation="factual", subset=subset, **own, **parts)
