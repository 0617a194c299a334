"""Encoded samples → a batch of tokens: one packed row, or one padded row per view.

The tokens of a view are its prompt and the answer without its last token. Every collator returns `input_ids`, the
model's other inputs, `labels` (B, A) filled with −100 and, if rows have it, `content` (B, A).
`view_tokens` counts tokens without sharing or padding, `kl_rows` samples whose refined view differs from the original.
Answer tokens that are not `trained` have no label or index. A view that equals an earlier one of its sample is not
computed again: its `answer_index` is that of the earlier view.

Legend: B samples, A tokens of the longest answer, N trained answer tokens of the batch, T tokens of a packed row,
R computed views of all samples, at most views · B.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from d2e_sft.config.objectives import View, ViewGradients
from d2e_sft.model.packing import pack

IGNORE = -100
# A dataset row: the prompt ids of each view and `answer`; optionally `content` and `trained`, a bool per answer token.
# With a rejected answer `rejected` and optionally `rejected_trained`, and `reference`, the log-probabilities of both
# answers by a reference.
Row = dict[str, Any]
_OWNER = "owner"  # the sample of a rejected answer, by its place in the batch


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
        sequences = [_tokens(sample, view) for view in self.views for sample in batch]
        at, size = sources(batch, self.views, self.view_gradients), len(batch)
        order = computed(at)
        if self.share_across_samples:
            groups, leading = [[sequences[i] for i in order]], size
        else:
            owner = [row.get(_OWNER, b) for b, row in enumerate(batch)]
            order.sort(key=lambda i: owner[i % size])  # stable: the views of a sample keep their order
            groups = [[sequences[i] for i in own] for _, own in groupby(order, key=lambda i: owner[i % size])]
            leading = 1
        row = pack(groups, leading=None if self.view_gradients == "all" else leading)
        index_of = dict(zip(order, row.indices, strict=True))
        return {
            # torch.tensor takes six times as long on a list, a third of a batch's time.
            "input_ids": torch.frombuffer(array("q", row.tokens), dtype=torch.int64)[None],
            "forest": row.forest,
            **_answers([index_of[i] for i in at], batch, self.views),
            "view_tokens": sum(map(len, sequences)),
        }


@dataclass(frozen=True)
class BatchedCollator:
    """Pads one row per computed view and sample on the left, view by view: the `samples` originals come first.

    Returns `input_ids`, `attention_mask`, `position_ids` (R, L), `samples` and `answer_index` (views, N) into the
    flattened rows.
    """

    views: Sequence[View]
    pad_token_id: int
    view_gradients: ViewGradients = "all"

    def __call__(self, batch: Sequence[Row]) -> dict[str, Any]:
        rows = [_tokens(sample, view) for view in self.views for sample in batch]
        at = sources(batch, self.views, self.view_gradients)
        place = {i: n for n, i in enumerate(computed(at))}
        padded = left_pad([rows[i] for i in place], self.pad_token_id)
        width = padded["input_ids"].shape[1]
        ends = [(place[i] + 1) * width for i in at]
        indices = [list(range(end - len(row), end)) for end, row in zip(ends, rows, strict=True)]
        counts = {"samples": len(batch), "view_tokens": sum(map(len, rows))}
        return {**padded, **_answers(indices, batch, self.views), **counts}


@dataclass(frozen=True)
class EncoderDecoderCollator:
    """For encoder-decoder models: a right-padded encoder row and a decoder row per computed view and sample.

    Returns `input_ids`, `attention_mask` (R, L), view by view, `decoder_input_ids` (R, A), which are the start token
    and the answer without its last token, `samples`, and `answer_index` (views, N) into the flattened decoder rows.
    """

    views: Sequence[View]
    pad_token_id: int
    start_token_id: int
    view_gradients: ViewGradients = "all"

    def __call__(self, batch: Sequence[Row]) -> dict[str, Any]:
        rows = [list(sample[view]) for view in self.views for sample in batch]
        shifted = [[self.start_token_id, *sample["answer"][:-1]] for sample in batch] * len(self.views)
        at = sources(batch, self.views, self.view_gradients)
        width, place = max(map(len, shifted)), {i: n for n, i in enumerate(computed(at))}
        starts = [place[i] * width for i in at]
        indices = [list(range(start, start + len(row))) for start, row in zip(starts, shifted, strict=True)]
        return {
            **encoder_inputs([rows[i] for i in place], self.pad_token_id),
            "decoder_input_ids": right_pad([shifted[i] for i in place], self.pad_token_id),
            **_answers(indices, batch, self.views),
            "samples": len(batch),
            "view_tokens": sum(map(len, rows)) + sum(map(len, shifted)),
        }


@dataclass(frozen=True)
class PairCollator:
    """Adds the rejected answers to the batch of another collator, each as one more branch of its sample's prompt.

    `answer_index` continues with their tokens. Returns also `rejected` (R, A), their labels; `owner` (R,), the sample
    of each; and `reference` (B + R,) if rows have it.
    """

    collate: Any

    def __call__(self, batch: Sequence[Row]) -> dict[str, Any]:
        owner, size = [b for b, row in enumerate(batch) if row.get("rejected")], len(batch)
        others = [
            {**batch[b], "answer": batch[b]["rejected"], "trained": batch[b].get("rejected_trained"), _OWNER: b}
            for b in owner
        ]
        for row in others:
            row.pop("content", None)  # that of the gold answer
        found: dict[str, Any] = self.collate([*batch, *others])
        found["labels"], found["rejected"] = found["labels"].split([size, len(owner)])
        found[_OWNER] = torch.tensor(owner, dtype=torch.int64)
        if all("reference" in row for row in batch):
            gold = [row["reference"][0] for row in batch]
            found["reference"] = torch.tensor([*gold, *(batch[b]["reference"][1] for b in owner)])
        return found


def sources(batch: Sequence[Row], views: Sequence[View], gradients: ViewGradients = "all") -> list[int]:
    """Return by which sequence each one is computed, view by view: itself, or an earlier, equal view of its sample.

    With gradients of the original view only, the others run in a forward of their own. One of them is then always
    computed, since sharded processes (ZeRO-3, FSDP) must run equally many forwards.
    """
    size = len(batch)
    found = [
        next((w for w in range(v) if list(row[views[w]]) == list(row[view])), v) * size + b
        for v, view in enumerate(views)
        for b, row in enumerate(batch)
    ]
    if gradients == "original" and len(views) > 1 and max(found) < size:
        found[size] = size
    return found


def computed(at: Sequence[int]) -> list[int]:
    """Return the sequences that are computed, in order, from their `sources`."""
    return [i for i, source in enumerate(at) if i == source]


def counts_of(batch: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return the tokens of all views of a batch, its samples, and those whose refined view is not the original."""
    samples = len(batch["labels"])
    return batch["view_tokens"], samples, batch.get("kl_rows", samples)


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


def _trained(row: Row) -> list[bool]:
    return row.get("trained") or [True] * len(row["answer"])


def _tokens(sample: Row, view: View) -> list[int]:
    return [*sample[view], *sample["answer"][:-1]]


def _answers(indices: Sequence[Sequence[int]], batch: Sequence[Row], views: Sequence[View]) -> dict[str, Any]:
    """Return labels, content, `answer_index` and `kl_rows`, from the indices of each sequence's tokens."""
    answers = [sample["answer"] for sample in batch]
    trained = [_trained(sample) for sample in batch]
    last = [
        i
        for index, marks in zip(indices, trained * len(views), strict=True)
        for i, mark in zip(index[len(index) - len(marks) :], marks, strict=True)
        if mark
    ]
    labels = [
        [token if mark else IGNORE for token, mark in zip(answer, marks, strict=True)]
        for answer, marks in zip(answers, trained, strict=True)
    ]
    found: dict[str, Any] = {
        "answer_index": torch.tensor(last).view(len(views), -1),
        "labels": right_pad(labels, IGNORE),
        "kl_rows": sum("refined" in views and list(row["refined"]) != list(row["original"]) for row in batch),
    }
    if all("content" in sample for sample in batch):
        found["content"] = right_pad([sample["content"] for sample in batch], False)
    return found
