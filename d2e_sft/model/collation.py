"""Encoded samples → a batch of tokens: one packed row, or one padded row per view.

The tokens of a view are its prompt and the answer without its last token. Every collator returns `input_ids`, the
model's other inputs, `labels` (B, A) filled with −100 and, if rows have them, `content` and `weights` (B, A).
`view_tokens` counts tokens without sharing or padding. Answer tokens that are not `trained` have no label or index.

Legend: B samples, A tokens of the longest answer, N trained answer tokens of the batch, T tokens of a packed row.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from d2e_sft.config.objectives import View, ViewGradients
from d2e_sft.model.packing import pack

IGNORE = -100
# A dataset row: the prompt ids of each view and `answer`; optionally `content` and `trained`, a bool per answer token,
# and `weight`, the weight of its loss.
Row = dict[str, Any]


@dataclass(frozen=True)
class PackedCollator:
    """Packs the batch into one row, shared prefixes once.

    Returns `input_ids` (1, T), `answer_index` (views, N), the position in the row at which each view predicts each
    answer token, and the row's `forest`.

    Args:
        views: the views of each sample, `original` first.
        share_across_samples: share prefixes of all samples, not only those of the views of a sample.
        view_gradients: `original` moves the tokens that only other views use to the end of the row.
    """

    views: Sequence[View]
    share_across_samples: bool = True
    view_gradients: ViewGradients = "all"

    def __call__(self, batch: Sequence[Row]) -> dict[str, Any]:
        # View by view: the originals lead their group.
        sequences = [[_tokens(sample, view) for sample in batch] for view in self.views]
        if self.share_across_samples:
            groups = [[tokens for of_view in sequences for tokens in of_view]]
            leading = len(batch)
        else:
            groups = [list(of_sample) for of_sample in zip(*sequences, strict=True)]
            leading = 1
        row = pack(groups, leading=None if self.view_gradients == "all" else leading)
        indices = row.indices
        if not self.share_across_samples:
            indices = [indices[b * len(self.views) + v] for v in range(len(self.views)) for b in range(len(batch))]
        return {
            # torch.tensor takes six times as long on a list, a third of a batch's time.
            "input_ids": torch.frombuffer(array("q", row.tokens), dtype=torch.int64)[None],
            "forest": row.forest,
            **_answers(indices, batch, len(self.views)),
            "view_tokens": sum(len(tokens) for of_view in sequences for tokens in of_view),
        }


@dataclass(frozen=True)
class BatchedCollator:
    """Pads one row per view and sample on the left: `[original × B | imagined × B | refined × B]`.

    Returns `input_ids`, `attention_mask`, `position_ids` (views · B, L) and `answer_index` (views, N) into the
    flattened rows.
    """

    views: Sequence[View]
    pad_token_id: int

    def __call__(self, batch: Sequence[Row]) -> dict[str, Any]:
        rows = [_tokens(sample, view) for view in self.views for sample in batch]
        padded = left_pad(rows, self.pad_token_id)
        width = padded["input_ids"].shape[1]
        indices = [list(range((i + 1) * width - len(row), (i + 1) * width)) for i, row in enumerate(rows)]
        return {**padded, **_answers(indices, batch, len(self.views)), "view_tokens": sum(map(len, rows))}


@dataclass(frozen=True)
class EncoderDecoderCollator:
    """For encoder-decoder models: one right-padded encoder row per view and sample, one decoder row per sample.

    Returns `input_ids`, `attention_mask` (views · B, L), view by view, and `answer_index` (views, N) into views · B
    flattened decoder rows. `decoder_input_ids` (B, A) are the start token and the answer without its last token.
    """

    views: Sequence[View]
    pad_token_id: int
    start_token_id: int

    def __call__(self, batch: Sequence[Row]) -> dict[str, Any]:
        rows = [list(sample[view]) for view in self.views for sample in batch]
        shifted = [[self.start_token_id, *sample["answer"][:-1]] for sample in batch]
        width = max(map(len, shifted))
        count = len(self.views) * len(batch)
        indices = [list(range(i * width, i * width + len(shifted[i % len(batch)]))) for i in range(count)]
        return {
            **encoder_inputs(rows, self.pad_token_id),
            "decoder_input_ids": right_pad(shifted, self.pad_token_id),
            **_answers(indices, batch, len(self.views)),
            "view_tokens": sum(map(len, rows)) + len(self.views) * sum(map(len, shifted)),
        }


def left_pad(rows: Sequence[Sequence[int]], pad: int) -> dict[str, Tensor]:
    """Return `input_ids`, `attention_mask` and `position_ids`, each (rows, longest), int64, aligned to the right.

    Mask and positions come from lengths, not from the pad id.
    """
    longest = max(map(len, rows))
    input_ids = torch.tensor([[*[pad] * (longest - len(row)), *row] for row in rows])
    padding = torch.tensor([longest - len(row) for row in rows])
    attention_mask = (torch.arange(longest) >= padding[:, None]).long()
    position_ids = (attention_mask.cumsum(dim=-1) - 1).clamp(min=0)
    return {"input_ids": input_ids, "attention_mask": attention_mask, "position_ids": position_ids}


def encoder_inputs(rows: Sequence[Sequence[int]], pad: int) -> dict[str, Tensor]:
    """Return `input_ids` and `attention_mask` for an encoder, each (rows, longest), int64, aligned to the left."""
    return {"input_ids": right_pad(rows, pad), "attention_mask": right_pad([[1] * len(row) for row in rows], 0)}


def right_pad(rows: Sequence[Sequence[int]], pad: int) -> Tensor:
    """Return (rows, longest), int64, aligned to the left."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[pad] * (longest - len(row))] for row in rows])


def trained_tokens(row: Row) -> int:
    """Return how many answer tokens of the row the loss is on."""
    return sum(_trained(row))


def _trained(row: Row) -> list[bool]:
    return row.get("trained") or [True] * len(row["answer"])


def _tokens(sample: Row, view: View) -> list[int]:
    return [*sample[view], *sample["answer"][:-1]]


def _answers(indices: Sequence[Sequence[int]], batch: Sequence[Row], views: int) -> dict[str, Tensor]:
    """Return labels, content, weights and `answer_index`, from the indices of each sequence's tokens, view by view."""
    answers = [sample["answer"] for sample in batch]
    trained = [_trained(sample) for sample in batch]
    last = [
        i
        for index, marks in zip(indices, trained * views, strict=True)
        for i, mark in zip(index[len(index) - len(marks) :], marks, strict=True)
        if mark
    ]
    labels = [
        [token if mark else IGNORE for token, mark in zip(answer, marks, strict=True)]
        for answer, marks in zip(answers, trained, strict=True)
    ]
    found = {"answer_index": torch.tensor(last).view(views, -1), "labels": right_pad(labels, IGNORE)}
    if all("content" in sample for sample in batch):
        found["content"] = right_pad([sample["content"] for sample in batch], False)
    if any("weight" in sample for sample in batch):
        each = torch.tensor([float(sample.get("weight", 1.0)) for sample in batch])
        found["weights"] = each[:, None].expand(found["labels"].shape)
    return found
