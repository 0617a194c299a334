"""Encoded samples → one batch of tokens, packed or a row a view.

A view's tokens are its prompt and the answer without its last token: that one is predicted, but predicts nothing.

Every collator returns `input_ids` and what the model needs beside them, `labels` (B, A) filled with −100, `content`
(B, A) where the rows say which answer tokens the response form leaves open, `weights` (B, A), float32, where they have
a `weight`, and `view_tokens`, the tokens of all views
as they would be without sharing or padding. Answer tokens that a row says are not `trained` are read by the tokens
after them, and are neither labels nor indexed.

Legend: B samples, A tokens of the longest answer, N answer tokens of the batch, T tokens of a packed row.
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
# One dataset row: the prompt ids of each view, `answer`, and in `content`, and perhaps `trained`, a bool for each of
# its tokens, and perhaps its `weight` in the loss.
Row = dict[str, Any]


@dataclass(frozen=True)
class PackedCollator:
    """One row for the whole batch, shared prefixes once.

    Returns `input_ids` (1, T), `answer_index` (views, N), where in the row each view predicts each
    answer token, and the row's `forest`.

    Args:
        views: the views of each sample, `original` first.
        share_across_samples: share what all samples begin with too, not only the views of each.
        view_gradients: with `original`, what the other views need alone stands at the row's end.
    """

    views: Sequence[View]
    share_across_samples: bool = True
    view_gradients: ViewGradients = "all"

    def __call__(self, batch: Sequence[Row]) -> dict[str, Any]:
        # View by view, so that the originals lead their group.
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
            # torch.tensor reads a list six times as slowly, which was a third of the time of a batch.
            "input_ids": torch.frombuffer(array("q", row.tokens), dtype=torch.int64)[None],
            "forest": row.forest,
            **_answers(indices, batch, len(self.views)),
            "view_tokens": sum(len(tokens) for of_view in sequences for tokens in of_view),
        }


@dataclass(frozen=True)
class BatchedCollator:
    """One left-padded row a view and sample: `[original × B | imagined × B | refined × B]`.

    Returns `input_ids`, `attention_mask`, `position_ids` (views · B, L) and `answer_index` (views, N), which counts
    through the flattened rows.
    """

    views: Sequence[View]
    pad_token_id: int

    def __call__(self, batch: Sequence[Row]) -> dict[str, Any]:
        rows = [_tokens(sample, view) for view in self.views for sample in batch]
        padded = left_pad(rows, self.pad_token_id)
        width = padded["input_ids"].shape[1]
        indices = [list(range((i + 1) * width - len(row), (i + 1) * width)) for i, row in enumerate(rows)]
        return {
            **padded,
            **_answers(indices, batch, len(self.views)),
            "view_tokens": sum(map(len, rows)),
        }


@dataclass(frozen=True)
class EncoderDecoderCollator:
    """For encoder-decoder models: one right-padded encoder row a view and sample, one decoder row a sample.

    Returns `input_ids`, `attention_mask` (views · B, L), view by view, `decoder_input_ids` (B, A), the start token and
    the answer without its last token, and `answer_index` (views, N), which counts through views · B decoder rows.
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
    """Stack rows of ids, aligned to the right; mask and positions come from lengths, never from the pad id.

    Returns `input_ids`, `attention_mask` and `position_ids`, each (rows, longest), int64.
    """
    longest = max(len(row) for row in rows)
    input_ids = torch.full((len(rows), longest), pad, dtype=torch.long)
    attention_mask = torch.zeros((len(rows), longest), dtype=torch.long)
    for i, row in enumerate(rows):
        input_ids[i, longest - len(row) :] = torch.tensor(row, dtype=torch.long)
        attention_mask[i, longest - len(row) :] = 1
    position_ids = (attention_mask.cumsum(dim=-1) - 1).clamp(min=0)
    return {"input_ids": input_ids, "attention_mask": attention_mask, "position_ids": position_ids}


def encoder_inputs(rows: Sequence[Sequence[int]], pad: int) -> dict[str, Tensor]:
    """`input_ids` and `attention_mask`, each (rows, longest), int64, of rows for an encoder, aligned to the left."""
    return {"input_ids": right_pad(rows, pad), "attention_mask": right_pad([[1] * len(row) for row in rows], 0)}


def right_pad(rows: Sequence[Sequence[int]], pad: int) -> Tensor:
    """(rows, longest), int64, aligned to the left."""
    longest = max(len(row) for row in rows)
    return torch.tensor([[*row, *[pad] * (longest - len(row))] for row in rows])


def trained_tokens(row: Row) -> int:
    """How many tokens of the row's answer the loss is on."""
    return sum(_trained(row))


def _trained(row: Row) -> list[bool]:
    return row.get("trained") or [True] * len(row["answer"])


def _tokens(sample: Row, view: View) -> list[int]:
    return [*sample[view], *sample["answer"][:-1]]


def _answers(indices: Sequence[Sequence[int]], batch: Sequence[Row], views: int) -> dict[str, Tensor]:
    """`labels`, `content`, and as `answer_index` (views, N) each sequence's last tokens, as many as its answer has.

    Args:
        indices: of the tokens of each sequence; sequences view by view.
    """
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
