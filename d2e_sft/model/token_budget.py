"""Balanced micro-batches within a budget of tokens or rows, composed by shared contexts.

The cut of a step changes only memory and time. Rows with the same context share a micro-batch, whose packed row holds
the context once.

Legend: n samples.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from d2e_sft.config.recipe import D2ESection
from d2e_sft.model.collation import Row, computed, sources
from d2e_sft.model.packing import MIN_SHARED, common_length, pack
from d2e_sft.model.packing_support import Layout


@dataclass(frozen=True)
class TokenCosts:
    """The tokens that each row adds to a micro-batch.

    Packed micro-batches may hold fewer tokens: prefixes that only some samples share are counted for each, except for
    those of a common context. Padded rows are as wide as the widest.

    Attributes:
        tokens: (n) of each row; of its widest view if rows are padded.
        shared: Tokens of the prefix that all samples share, which a packed micro-batch holds once.
        views: Computed views of each row if rows are padded, else empty.
        contexts: (n) equal for rows with the same context; empty if no row has one.
        saved: Context → tokens that each further row with it saves in a micro-batch.
        in_rows: Whether each row costs 1, for a budget of rows.
    """

    tokens: Sequence[int]
    shared: int = 0
    views: Sequence[int] = ()
    contexts: Sequence[Hashable] = ()
    saved: Mapping[Hashable, int] = field(default_factory=dict)
    in_rows: bool = False

    @classmethod
    def of(cls, rows: Sequence[Row], layout: Layout, d2e: D2ESection) -> TokenCosts:
        """Count the tokens of each row in a training step, which takes about 0.1 ms per row."""
        views = d2e.views
        padded = layout.packing in ("batched", "encoder_decoder")
        tokens, counts, first, shared = list[int](), list[int](), None, 0
        contexts, prefixes = list[Hashable](), dict[Hashable, Sequence[int]]()
        for number, row in enumerate(rows):
            prompts = [list(row[views[v]]) for v in computed(sources([row], views, d2e.view_gradients))]
            branches = [[*prompt, *row["answer"][:-1]] for prompt in prompts]
            if d2e.prefers and row.get("rejected"):
                branches.append([*prompts[0], *row["rejected"][:-1]])
            counts.append(len(branches))
            contexts.append(row.get("context") or (number,))  # a row without a context shares it with none
            if padded:
                tokens.append(max(map(len, branches)))
                continue
            tokens.append(len(pack([branches]).tokens))
            if layout.packing != "shared_batch":
                continue
            if first is None:
                first, shared = prompts[0], min(map(len, prompts))
            shared = min(shared, *(common_length([first, prompt]) for prompt in prompts)) if shared else 0
            before = prefixes.setdefault(contexts[-1], prompts[0])
            prefixes[contexts[-1]] = before[: common_length([[*before, 0], prompts[0]])]
        # A split of the packed row may compute shared runs shorter than MIN_SHARED twice, for each view.
        fixed = shared + (MIN_SHARED - 1) * (len(views) + d2e.prefers)
        repeated = Counter(contexts)
        saved = {key: len(ids) - fixed for key, ids in prefixes.items() if repeated[key] > 1 and len(ids) > fixed}
        return cls(tokens, shared, counts if padded else (), contexts, saved)

    def of_micro_batch(self, rows: Sequence[int]) -> int:
        """Return an upper bound of the tokens of the rows together."""
        if not rows:
            return 0
        if self.views:
            return sum(self.views[i] for i in rows) * max(self.tokens[i] for i in rows)
        repeated = Counter(self.contexts[i] for i in rows) if self.saved else {}
        saved = sum(self.saved.get(key, 0) * (n - 1) for key, n in repeated.items())
        return sum(self.tokens[i] - self.shared for i in rows) + self.shared - saved

    def budgeted(self, tokens: int | None, rows: int) -> tuple[TokenCosts, int]:
        """Return costs and the budget of a micro-batch: `tokens`, or without tokens `rows` of cost 1."""
        if tokens is not None:
            return self, tokens
        ones, nothing = [1] * len(self.tokens), dict.fromkeys(self.saved, 0)
        return replace(self, tokens=ones, shared=0, views=(), saved=nothing, in_rows=True), rows

    def why_nothing_is_saved(self, layout: Layout) -> str | None:
        """Return why rows with the same context share no tokens; None if some do."""
        if self.saved:
            return None
        if layout.packing != "shared_batch":
            return f"packing {layout.packing} shares no tokens between samples"
        if len(set(self.contexts)) == len(self.contexts):
            return "no two rows have the same context"
        return "prompts with the same context begin differently (it comes after the question, or is short)"

    def grouped(self, rows: Sequence[int]) -> list[list[int]]:
        """Return the rows in groups that share a context, in the order of their first rows."""
        groups = dict[Hashable, list[int]]()
        for i in rows:
            alone = not self.saved or self.contexts[i] not in self.saved
            groups.setdefault(("row", i) if alone else self.contexts[i], []).append(i)
        return list(groups.values())


def cut_by_tokens(rows: Sequence[int], costs: TokenCosts, budget: int, processes: int = 1) -> list[list[int]]:
    """Cut the rows of an optimiser step into micro-batches of at most `budget` tokens, a multiple of `processes`.

    Packed micro-batches are filled evenly (the longest sample first, each into the emptiest one, rows with the same
    context together), padded ones hold samples of similar length. A budget of rows is filled. A sample over the
    budget is a micro-batch of its own. With fewer samples than processes, some micro-batches are empty.
    """
    order = sorted(rows, key=lambda i: (-costs.tokens[i], i))
    cut = _in_runs if costs.views else _filled if costs.in_rows else _evenly
    count = processes
    while True:
        parts = cut(order, costs, budget, count)
        fits = all(len(part) <= 1 or costs.of_micro_batch(part) <= budget for part in parts)
        if fits and len(parts) % processes == 0:
            return parts
        count = max(count, len(parts) - 1) // processes * processes + processes


def _evenly(order: Sequence[int], costs: TokenCosts, budget: int, count: int) -> list[list[int]]:
    count = max(count, min(len(order), costs.of_micro_batch(order) // budget))
    groups = [part for group in costs.grouped(order) for part in _within(group, costs, budget)]
    while len(groups) < min(count, len(order)):  # so that no process waits for the rows of a context
        _halve(groups, max(range(len(groups)), key=lambda i: len(groups[i])))
    loads = [max(costs.of_micro_batch(group) - costs.shared, 1) for group in groups]
    parts: list[list[int]] = [[] for _ in range(count)]
    filled = [0] * count
    for i in sorted(range(len(groups)), key=lambda i: -loads[i]):  # stable
        emptiest = filled.index(min(filled))
        parts[emptiest] += groups[i]
        filled[emptiest] += loads[i]
    return parts


def _filled(order: Sequence[int], costs: TokenCosts, budget: int, count: int) -> list[list[int]]:
    count = max(count, math.ceil(len(order) / budget))
    most = math.ceil(len(order) / count)
    parts: list[list[int]] = [[] for _ in range(count)]
    for group in sorted(costs.grouped(order), key=lambda rows: -len(rows)):  # stable
        left = group
        while left:
            room = [most - len(part) for part in parts]
            enough = [i for i in range(count) if room[i] >= len(left)]
            i = min(enough, key=room.__getitem__) if enough else room.index(max(room))
            parts[i] += left[: room[i]]
            left = left[room[i] :]
    return parts


def _within(group: list[int], costs: TokenCosts, budget: int) -> list[list[int]]:
    """Return the rows of a context in as few equal parts as fit the budget, or one by one."""
    cuts = ([group[k::count] for k in range(count)] for count in range(1, len(group) + 1))
    return next(parts for parts in cuts if all(len(p) == 1 or costs.of_micro_batch(p) <= budget for p in parts))


def _halve(parts: list[list[int]], i: int) -> None:
    half = len(parts[i]) // 2
    parts[i : i + 1] = [parts[i][:half], parts[i][half:]]


def _in_runs(order: Sequence[int], costs: TokenCosts, budget: int, count: int) -> list[list[int]]:
    parts: list[list[int]] = []
    for i in order:
        if parts and costs.of_micro_batch([*parts[-1], i]) <= budget:
            parts[-1].append(i)
        else:
            parts.append([i])
    while len(parts) < count:
        _halve(parts, max(range(len(parts)), key=lambda i: len(parts[i])))
    return parts
