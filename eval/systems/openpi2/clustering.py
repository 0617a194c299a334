"""Several answers to "which names mean the same" → one clustering, greedily by how often a cluster was given."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Sequence

Clustering = list[list[str]]


def parse_groups(reply: str) -> list[tuple[str, ...]]:
    """The groups of a reply, each a list in brackets on a line of its own; a line that is none gives no group."""
    groups = []
    for line in reply.splitlines():
        start = line.find("[")
        if start >= 0:
            groups.append(_list(line[start:].strip()))
    return [group for group in groups if group]


def _list(text: str) -> tuple[str, ...]:
    # An answer that was cut off may lack its last bracket, and one that goes on have a comma after it.
    for candidate in (text, text.rstrip(",."), text.rstrip(",") + "]", text + "']"):
        try:
            value = ast.literal_eval(candidate)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
    return ()


def aggregate(names: Sequence[str], answers: Iterable[Sequence[tuple[str, ...]]], *, leftovers: str) -> Clustering:
    """One clustering of the names from the groups of several answers (paper section 3.1, footnote 3).

    The group given most often is taken first, then the next of which no name is taken yet; order among names matters
    not. Groups with other names are passed over. Ties: the one met first.

    Args:
        leftovers: what becomes of names in no group: `together` makes one cluster of them, as the official script does
            to entities, `apart` one of each, as it does to attributes.
    """
    counts: Counter[frozenset[str]] = Counter()
    written: dict[frozenset[str], tuple[str, ...]] = {}
    for groups in answers:
        for group in groups:
            counts[frozenset(group)] += 1
            written.setdefault(frozenset(group), group)
    left = list(dict.fromkeys(names))
    clusters: Clustering = []
    for members, _ in counts.most_common():
        if members and members <= set(left):
            clusters.append(list(dict.fromkeys(written[members])))
            left = [name for name in left if name not in members]
    if left:
        clusters += [left] if leftovers == "together" else [[name] for name in left]
    return clusters


def merge_alike(names: Sequence[str]) -> dict[str, list[str]]:
    """Names that differ by article, letter case or a plural ending alone, by the first of them."""
    first: dict[str, str] = {}
    merged: dict[str, list[str]] = {}
    for name in names:
        kept = first.setdefault(_singular(_bare(name)), name)
        merged.setdefault(kept, []).append(name)
    return merged


def spread(clusters: Clustering, merged: dict[str, list[str]]) -> Clustering:
    """The clustering of all names from that of the first of each."""
    return [[name for first in cluster for name in merged[first]] for cluster in clusters]


def _bare(name: str) -> str:
    name = name.strip().lower()
    for article in ("the ", "a ", "an "):
        if name.startswith(article):
            return name.removeprefix(article)
    return name


def _singular(name: str) -> str:
    if name.endswith("ss") or len(name) <= 4:
        return name
    return name[:-3] + "y" if name.endswith("ies") else name.removesuffix("s")
