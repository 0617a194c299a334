"""Token sequences → one packed row in which every shared prefix stands once.

The views of a sample begin alike, and so do the samples of a format (their system prompt). A row is therefore a
forest: a segment's tokens see the segments above it and, causally, themselves; positions restart where branches
part. One forward over the row equals one forward for each sequence.

Legend: T tokens in the row, S segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

# Fewer shared tokens than this are computed twice: a segment of its own costs two attention calls a layer.
MIN_SHARED = 8


@dataclass(frozen=True)
class Segment:
    """A run of tokens that the same set of sequences goes through."""

    start: int  # in the row
    end: int
    position: int  # of its first token
    parent: int  # index of the segment above, −1 for a root


@dataclass(frozen=True)
class AttentionBlock:
    """Queries [q_start, q_end) see keys [k_start, k_end): all of them, or (a segment itself) causally."""

    q_start: int
    q_end: int
    k_start: int
    k_end: int
    causal: bool


class TokenForest:
    """Which token of a packed row sees which.

    Segments stand so that the descendants of each are contiguous within either part of the row: first the segments
    that some `leading` sequence goes through, [0, `lead`), then the others.
    """

    def __init__(self, segments: Sequence[Segment], lead: int) -> None:
        self.segments = tuple(segments)
        self.lead = lead
        self.length = self.segments[-1].end
        self._plans: dict[tuple[int, int], AttentionPlan] = {}

    def plan(self, start: int, end: int) -> AttentionPlan:
        """Attention of the tokens [start, end), whole segments, to the tokens [0, end)."""
        if (start, end) not in self._plans:
            self._plans[start, end] = AttentionPlan(self, start, end)
        return self._plans[start, end]

    def path(self, segment: int) -> list[int]:
        """A segment's ancestors from the root down, and itself."""
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
        """(S, S) bool: [a, b] says that b is a or an ancestor of a."""
        above = torch.zeros(len(self.segments), len(self.segments), dtype=torch.bool)
        for i in range(len(self.segments)):
            above[i, self.path(i)] = True
        return above


class AttentionPlan:
    """What the queries [start, end) of a forest see among the keys [0, end); made once a batch, for all layers."""

    def __init__(self, forest: TokenForest, start: int, end: int) -> None:
        self.forest = forest
        self.start = start
        self.end = end
        self.block_masks: dict[int | None, Any] = {}  # flex_attention's form, by window

    @property
    def length(self) -> int:
        """Queries."""
        return self.end - self.start

    @cached_property
    def own_segments(self) -> tuple[int, ...]:
        """Segments of the queries."""
        forest = self.forest
        return tuple(i for i, s in enumerate(forest.segments) if self.start <= s.start and s.end <= self.end)

    @cached_property
    def blocks(self) -> tuple[AttentionBlock, ...]:
        """Each segment to itself, then each segment's descendants to it; query indices count from `start`."""
        segments = self.forest.segments
        itself, below = [], []
        for i in self.own_segments:
            s = segments[i]
            itself.append(AttentionBlock(s.start - self.start, s.end - self.start, s.start, s.end, causal=True))
        for i, s in enumerate(segments):
            inside = [segments[j] for j in self.own_segments if j != i and self.forest.is_above[j, i]]
            leading = [other for other in inside if other.end <= self.forest.lead]
            for part in (leading, inside[len(leading) :]):
                if part:
                    first, last = part[0].start - self.start, part[-1].end - self.start
                    below.append(AttentionBlock(first, last, s.start, s.end, causal=False))
        return (*itself, *below)

    def longest_distance(self) -> int:
        """Positions between a query and the farthest key that it sees."""
        segments = self.forest.segments
        return max(segments[i].position + segments[i].end - segments[i].start - 1 for i in self.own_segments)

    def mask(self, *, window: int | None = None) -> Tensor:
        """(queries, keys) bool, True where a query sees a key; a `window` counts positions, the query's included."""
        forest = self.forest
        segment, position = forest.segment_ids, forest.position_ids
        q_segment, q_position = segment[self.start : self.end], position[self.start : self.end]
        k_segment, k_position = segment[: self.end], position[: self.end]
        distance = q_position[:, None] - k_position[None, :]
        seen = forest.is_above[q_segment][:, k_segment] & (distance >= 0)
        return seen if window is None else seen & (distance < window)


@dataclass(frozen=True)
class PackedRow:
    """A forest's tokens, and where each sequence's tokens are found in the row."""

    forest: TokenForest
    tokens: list[int]
    indices: list[list[int]]  # one list a sequence: the row index of each of its tokens


def pack(
    groups: Sequence[Sequence[Sequence[int]]],
    *,
    leading: int | None = None,
    min_shared: int = MIN_SHARED,
    prefix: int = 0,
) -> PackedRow:
    """Pack sequences into one row; prefixes are shared inside a group only.

    Args:
        groups: token sequences, none empty. The views of one sample are a group, or all the views of a batch.
        leading: the first `leading` sequences of each group are placed, with all they share, before all others
            (they carry gradient and the others do not); None for all.
        min_shared: shorter shared runs are not shared.
        prefix: tokens that all sequences are known to begin with, and to be longer than: a segment by themselves, the
            row's first.

    Returns:
        the row; `indices` in the order of the groups' sequences.
    """
    nodes: list[_Node] = []
    paths: list[list[int]] = []
    root = -1
    if prefix:
        nodes.append(_Node(groups[0][0][:prefix], 0, -1, leads=True))
        root = 0
    for group in groups:
        first = len(paths)
        paths += [[0] if prefix else [] for _ in group]
        members = list(range(len(group)))
        _grow(group, members, prefix, prefix, root, min_shared, nodes, paths[first:])
        for i, path in enumerate(paths[first:]):
            if leading is None or i < leading:
                for step in path:
                    nodes[step].leads = True
    order = sorted(range(len(nodes)), key=lambda i: not nodes[i].leads)  # stable: depth-first in either part
    place = {node: i for i, node in enumerate(order)}
    segments: list[Segment] = []
    tokens: list[int] = []
    starts: dict[int, int] = {}
    for i in order:
        node = nodes[i]
        parent = place[node.parent] if node.parent >= 0 else -1
        starts[i] = len(tokens)
        segments.append(Segment(len(tokens), len(tokens) + len(node.tokens), node.position, parent))
        tokens += node.tokens
    lead = sum(len(node.tokens) for node in nodes if node.leads)
    indices = [[starts[n] + k for n in path for k in range(len(nodes[n].tokens))] for path in paths]
    return PackedRow(TokenForest(segments, lead), tokens, indices)


@dataclass
class _Node:
    tokens: Sequence[int]
    position: int
    parent: int
    leads: bool = False


def _grow(
    group: Sequence[Sequence[int]],
    members: list[int],
    start: int,
    known: int,
    parent: int,
    min_shared: int,
    nodes: list[_Node],
    paths: list[list[int]],
) -> None:
    """Add the nodes of `members`, which agree in [0, known) and whose tokens before `start` have theirs."""
    if len(members) == 1:
        sequence = group[members[0]]
        _add(sequence[start:], start, parent, members, nodes, paths)
        return
    split = common_length([group[i] for i in members], known)
    if split - start >= min_shared:
        parent = _add(group[members[0]][start:split], start, parent, members, nodes, paths)
        start = split
    children: dict[int, list[int]] = {}
    for i in members:
        # A sequence that ends here gets its last token to itself: so every sequence has a segment of its own.
        key = group[i][split] if len(group[i]) > split + 1 else -1 - i
        children.setdefault(key, []).append(i)
    for child in children.values():
        _grow(group, child, start, split, parent, min_shared, nodes, paths)


def _add(
    tokens: Sequence[int], position: int, parent: int, members: list[int], nodes: list[_Node], paths: list[list[int]]
) -> int:
    nodes.append(_Node(tokens, position, parent))
    for i in members:
        paths[i].append(len(nodes) - 1)
    return len(nodes) - 1


def common_length(sequences: Sequence[Sequence[int]], known: int = 0) -> int:
    """Tokens that all sequences begin with, each one's last token left out."""
    limit = min(len(sequence) for sequence in sequences) - 1
    first = sequences[0]
    length = known
    while length < limit and all(sequence[length] == first[length] for sequence in sequences[1:]):
        length += 1
    return max(length, 0)
