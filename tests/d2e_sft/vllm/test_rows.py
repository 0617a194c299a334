"""Where the paired rows are, as the two model runners tell it; against a naive record by request."""

from __future__ import annotations

import random
from enum import Enum, auto
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from d2e_sft.vllm.pairing import BatchRows, PairedRow, SlotRows, debias_rows, match


class _Move(Enum):
    UNIDIRECTIONAL = auto()
    SWAP = auto()


def _row(name: str, view: Any = "original") -> PairedRow:
    return PairedRow(pair=name, view=view, alpha=0.5, sentinel=0)


def test_rows_are_followed_through_a_batch_that_changes_at_random() -> None:
    generator = random.Random(0)
    rows, batch = BatchRows(), {}  # index → (row or None for a plain request, its output tokens)
    for step in range(300):
        removed = [index for index in sorted(batch) if generator.random() < 0.2]
        for index in removed:
            del batch[index]
        added = []
        for index in range(12):
            if index not in batch and generator.random() < 0.3:
                batch[index] = (_row(f"{step}-{index}") if generator.random() < 0.7 else None, [])
                added.append((index, *batch[index]))
        moved = []
        for _ in range(generator.randrange(3)):
            source, target = generator.sample(range(12), 2)
            if source in batch and target in batch:
                batch[source], batch[target] = batch[target], batch[source]
                moved.append((source, target, _Move.SWAP))
            elif source in batch:
                batch[target] = batch.pop(source)
                moved.append((source, target, _Move.UNIDIRECTIONAL))
        rows.update(removed, added, moved)
        for _, outputs in batch.values():
            outputs.extend([-1] * generator.randrange(2))  # async scheduling: their number is known before they are
        expected = {(index, len(out), row) for index, (row, out) in batch.items() if row is not None}
        assert {(here.index, here.length, here.row) for here in rows.in_batch()} == expected


def _slots(prefill: list[int], prompt: list[int] | None = None, **views: int) -> SlotRows:
    """Slots by their prompts' lengths; `views` are the slots of the two requests of a pair."""
    lengths = {"prompt_len": prompt or prefill, "prefill_len": prefill}
    rows = SlotRows(SimpleNamespace(**{name: SimpleNamespace(np=np.array(of)) for name, of in lengths.items()}))
    for view, slot in views.items():
        assert rows.add(slot, _row("p", view))
    return rows


def _context(slots: list[int], lengths: list[int], expanded: list[int] | None = None) -> Any:
    return SimpleNamespace(
        idx_mapping_np=np.array(slots),
        expanded_idx_mapping=torch.tensor(expanded or slots),
        seq_lens_upper_bound_np=np.array(lengths),
    )


def test_slots_pair_by_the_index_of_the_token_that_is_about_to_be_chosen() -> None:
    rows = _slots([100, 0, 20, 50], original=0, imagined=2)
    rows.add(3, None)
    pairs, unpaired = match(rows.in_batch(_context([3, 2, 0], [60, 25, 105]), 3))
    assert [(original.index, imagined.index, original.length) for original, imagined in pairs] == [(2, 1, 5)]
    assert unpaired == []


def test_a_slot_whose_prompt_is_still_being_read_leaves_its_partner_alone() -> None:
    # The original was preempted with 5 tokens of an answer and is read again: prompt 100, to be filled up to 105.
    rows = _slots([105, 20], prompt=[100, 20], original=0, imagined=1)
    pairs, unpaired = match(rows.in_batch(_context([0, 1], [64, 25]), 2))
    assert (pairs, [here.index for here in unpaired]) == ([], [1])
    assert len(match(rows.in_batch(_context([0, 1], [105, 25]), 2))[0]) == 1


def test_a_slot_forgets_its_last_occupant() -> None:
    rows = _slots([4, 4], original=0)
    assert not rows.add(0, None)
    assert rows.in_batch(_context([0, 1], [4, 4]), 2) == []


def test_draft_tokens_leave_every_row_alone() -> None:
    logits = torch.randn(4, 9)
    context = _context([0, 1], [6, 6], expanded=[0, 0, 1, 1])
    debias_rows(logits, _slots([4, 4], original=0, imagined=1).in_batch(context, 4))
    assert (logits.isfinite().sum(dim=-1) == 1).all()
    assert (logits.argmax(dim=-1) == 0).all()
