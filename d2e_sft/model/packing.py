"""Token sequences → one packed row with each shared prefix once; a forward over it equals one forward per sequence.

A row is a forest: the tokens of a segment see the segments above it and, causally, their own; positions restart at
each branch.

Legend: T tokens in the row, S segments.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress, count
from typing import Any

import torch
from torch import Tensor

# Shorter shared prefixes are computed twice: a segment costs two attention calls per layer.
MIN_SHARED = 8


@dataclass(frozen=True)
class Segment:
    """A run of tokens shared by a set of sequences."""

    start: int  # in the row
    end: int
    position: int  # of its first token
    parent: int  # index of the segment above, −1 for a root


@dataclass(frozen=True)
class AttentionBlock:
    """Queries [q_start, q_end) see all keys [k_start, k_end), or see them causally (a segment itself)."""

    q_start: int
    q_end: int
    k_start: int
    k_end: int
    causal: bool


class TokenForest:
    """Which tokens of a packed row see which.

    First come the segments that some `leading` sequence passes, [0, `lead`), then the others. Within these two parts,
    the descendants of each segment are contiguous.
    """

    def __init__(self, segments: Sequence[Segment], lead: int) -> None:
        self.segments = tuple(segments)
        self.lead = lead
        self.length = self.segments[-1].end
        self._plans: dict[tuple[int, int], AttentionPlan] = {}

    def plan(self, start: int, end: int) -> AttentionPlan:
        """Return the attention of the tokens [start, end), whole segments, to the tokens [0, end)."""
        if (start, end) not in self._plans:
            self._plans[start, end] = AttentionPlan(self, start, end)
        return self._plans[start, end]

    def path(self, segment: int) -> list[int]:
        """Return a segment's ancestors from the root down, and itself."""
        path = [segment]
        while (parent := self.segments[path[-1]].parent) >= 0:
            path.append(parent)
        return path[::-1]

    @cached_property
    def position_ids(self) -> Tensor:
        """(T,) int64."""
        runs = [torch.arange(s.position, s.position + s.end - s.start) for s in self.segments]
        return torch.cat(runs)

    @cached_property
    def segment_ids(self) -> Tensor:
        """(T,) int64: the segment of each token."""
        lengths = torch.tensor([s.end - s.start for s in self.segments])
        return torch.repeat_interleave(torch.arange(len(self.segments)), lengths)

    @cached_property
    def is_above(self) -> Tensor:
        """(S, S) bool: [a, b] is True if b is a or an ancestor of a."""
        above = torch.zeros(len(self.segments), len(self.segments), dtype=torch.bool)
        for i in range(len(self.segments)):
            above[i, self.path(i)] = True
        return above


class AttentionPlan:
    """What the queries [start, end) of a forest see of the keys [0, end); made once per batch, for all layers."""

    def __init__(self, forest: TokenForest, start: int, end: int) -> None:
        self.forest = forest
        self.start = start
        self.end = end
        self.sequences: Any = None  # the same pattern in the form of CUDA's flash kernel

    @property
    def length(self) -> int:
        return self.end - self.start

    @cached_property
    def own_segments(self) -> tuple[int, ...]:
        forest = self.forest
        return tuple(i for i, s in enumerate(forest.segments) if self.start <= s.start and s.end <= self.end)

    @cached_property
    def blocks(self) -> tuple[AttentionBlock, ...]:
        """Each segment with itself, then with its descendants as queries; query indices count from `start`."""
        segments = self.forest.segments
        segments_of_queries = [segments[i] for i in self.own_segments]
        itself = [
            AttentionBlock(s.start - self.start, s.end - self.start, s.start, s.end, causal=True)
            for s in segments_of_queries
        ]
        below = []
        for i, s in enumerate(segments):
            inside = [segments[j] for j in self.own_segments if j != i and self.forest.is_above[j, i]]
            leading = [segment for segment in inside if segment.end <= self.forest.lead]
            for part in (leading, inside[len(leading) :]):
                if part:
                    first, last = part[0].start - self.start, part[-1].end - self.start
                    below.append(AttentionBlock(first, last, s.start, s.end, causal=False))
        return (*itself, *below)

    def longest_distance(self) -> int:
        """Return the largest distance, in positions, between a query and a key that it sees."""
        segments = self.forest.segments
        return max(segments[i].position + segments[i].end - segments[i].start - 1 for i in self.own_segments)

    def mask(self, *, window: int | None = None) -> Tensor:
        """Return (queries, keys) bool, True if a query sees a key; a `window` includes the position of the query."""
        forest = self.forest
        segment, position = forest.segment_ids, forest.position_ids
        q_segment, q_position = segment[self.start : self.end], position[self.start : self.end]
        k_segment, k_position = segment[: self.end], position[: self.end]
        distance = q_position[:, None] - k_position[None, :]
        seen = forest.is_above[q_segment][:, k_segment] & (distance >= 0)
        return seen if window is None else seen & (distance < window)


@dataclass(frozen=True)
class PackedRow:
    """The tokens of a forest, and the index in the row of each token of each sequence."""

    forest: TokenForest
    tokens: list[int]
    indices: list[list[int]]  # one list per sequence, in the order of the groups


def pack(
    groups: Sequence[Sequence[Sequence[int]]],
    *,
    leading: int | None = None,
    min_shared: int = MIN_SHARED,
    prefix: int = 0,
) -> PackedRow:
    """Pack sequences into one row; prefixes are shared only inside a group.

    Args:
        groups: Token sequences, none empty. A group is the views of one sample, or all views of a batch.
        leading: This many sequences of each group, which carry gradient, precede all others; None for all.
        min_shared: Shorter shared runs are not shared.
        prefix: Length of a prefix that all sequences are known to share and exceed; the first segment of the row.
    """
    nodes: list[_Node] = []
    leaves: list[int] = []
    if prefix:
        nodes.append(_Node(groups[0][0][:prefix], 0, -1, leads=True))
    for group in groups:
        grower = _Grower(nodes, len(group) if leading is None else leading, min_shared)
        leaf_of = dict(grower.grow(dict(enumerate(group)), prefix, prefix, 0 if prefix else -1))
        leaves += [leaf_of[i] for i in range(len(group))]
    order = sorted(range(len(nodes)), key=lambda i: not nodes[i].leads)  # stable: depth-first in either part
    place = {node: i for i, node in enumerate(order)}
    segments: list[Segment] = []
    tokens: list[int] = []
    for node in (nodes[i] for i in order):
        parent = place[node.parent] if node.parent >= 0 else -1
        segments.append(Segment(len(tokens), len(tokens) + len(node.tokens), node.position, parent))
        tokens += node.tokens
    forest = TokenForest(segments, lead=sum(len(node.tokens) for node in nodes if node.leads))
    paths = ([segments[i] for i in forest.path(place[leaf])] for leaf in leaves)
    return PackedRow(forest, tokens, [[k for s in path for k in range(s.start, s.end)] for path in paths])


@dataclass(frozen=True)
class _Node:
    tokens: Sequence[int]
    position: int
    parent: int
    leads: bool


@dataclass(frozen=True)
class _Grower:
    nodes: list[_Node]
    leading: int
    min_shared: int

    def grow(
        self, group: Mapping[int, Sequence[int]], start: int, known: int, parent: int
    ) -> Iterator[tuple[int, int]]:
        """Add nodes from `start` on for sequences that agree in [0, known); yield the last node of each."""
        first = min(group)
        single = len(group) == 1
        split = len(group[first]) if single else common_length([*group.values()], known)
        if single or split - start >= self.min_shared:
            self.nodes.append(_Node(group[first][start:split], start, parent, leads=first < self.leading))
            parent, start = len(self.nodes) - 1, split
        if single:
            yield first, parent
            return
        children: dict[int, dict[int, Sequence[int]]] = {}
        for i, sequence in group.items():
            # A sequence that ends here keeps its last token apart, so every sequence has its own segment.
            key = sequence[split] if len(sequence) > split + 1 else -1 - i
            children.setdefault(key, {})[i] = sequence
        for child in children.values():
            yield from self.grow(child, start, split, parent)


def common_length(sequences: Sequence[Sequence[int]], known: int = 0) -> int:
    """Return the length of the common prefix of all sequences, without the last token of each."""
    limit = max(min(map(len, sequences)) - 1, known)
    rest = [list(sequence[known:limit]) for sequence in sequences]
    # The smallest and the largest sequence share only what all share.
    differ = compress(count(known), map(operator.ne, min(rest), max(rest)))
    return next(differ, limit)
