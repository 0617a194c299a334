"""The paired rows of a step, from either of vLLM's model runners; imports no vLLM."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from d2e_sft.vllm.pairing import InBatch, PairedRow


class BatchRows:
    """The V1 runner: a batch whose rows come, go and move; a row's length is that of its list of output tokens.

    The list is the runner's own and grows with every token. With async scheduling it may hold a placeholder, so its
    length is always right, unlike its content.
    """

    def __init__(self) -> None:
        self._rows: dict[int, tuple[PairedRow, list[int]]] = {}

    def update(
        self,
        removed: Iterable[int],
        added: Iterable[tuple[int, PairedRow | None, list[int]]],
        moved: Iterable[tuple[int, int, Any]],
    ) -> None:
        """Apply removals, additions and moves, in this order; a move with `.name == "SWAP"` goes both ways."""
        for index in removed:
            self._rows.pop(index, None)
        for index, row, outputs in added:
            if row is None:
                self._rows.pop(index, None)
            else:
                self._rows[index] = (row, outputs)
        for source, target, direction in moved:
            mover, displaced = self._rows.pop(source, None), self._rows.pop(target, None)
            if mover is not None:
                self._rows[target] = mover
            if displaced is not None and direction.name == "SWAP":
                self._rows[source] = displaced

    def in_batch(self) -> list[InBatch]:
        """The paired rows of the step whose tokens are chosen next."""
        return [InBatch(index, len(outputs), row) for index, (row, outputs) in self._rows.items()]


class SlotRows:
    """Model Runner V2: a request keeps a slot, and each step lists its slots. Not tested on a device.

    `req_states` has the runner's `prompt_len` and `prefill_len` by slot.
    """

    def __init__(self, req_states: Any) -> None:
        self._states = req_states
        self._rows: dict[int, PairedRow] = {}

    def add(self, slot: int, row: PairedRow | None) -> bool:
        """Give the slot to a request; returns whether it is a paired one."""
        if row is None:
            self._rows.pop(slot, None)
        else:
            self._rows[slot] = row
        return row is not None

    def in_batch(self, ctx: Any, logits_rows: int) -> list[InBatch]:
        """The paired rows of a step, without those whose prompt is still being read."""
        slots = ctx.idx_mapping_np.tolist()
        if not any(slot in self._rows for slot in slots):
            return []
        if logits_rows != len(slots):  # speculative decoding: several rows per request, which cannot be paired
            expanded = ctx.expanded_idx_mapping.tolist()
            return [
                InBatch(index, -index - 1, self._rows[slot])
                for index, slot in enumerate(expanded)
                if slot in self._rows
            ]
        found = []
        for index, (slot, tokens) in enumerate(zip(slots, ctx.seq_lens_upper_bound_np.tolist(), strict=True)):
            if slot in self._rows and tokens >= self._states.prefill_len.np[slot]:
                length = int(tokens - self._states.prompt_len.np[slot])
                found.append(InBatch(index, length, self._rows[slot]))
        return found
