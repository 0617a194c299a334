"""Encoded samples → a batch of tokens: one packed row, or one padded row per view; and a batch → a model's inputs.

The tokens of a view are its prompt and the answer without its last token. A view that equals an earlier one of its
sample is not computed again: its `answer_index` is that of the earlier view. Answer tokens that are not `trained` have
no label or index.

Legend: B samples, A tokens of the longest answer, N trained answer tokens of the batch, T tokens of a packed row,
R computed views of all samples, at most views · B.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal, Self

import torch
from torch import Tensor

from d2e_sft.config.objectives import View, ViewGradients
from d2e_sft.model.packing import pack

IGNORE = -100
# A dataset row: the prompt ids of each view and `answer`; optionally `content` and `trained`, a bool per answer token.
# With a rejected answer `rejected` and optionally `rejected_trained`, and `reference`, the log-probabilities of both
# answers by a reference.
Row = dict[str, Any]
BatchLayout = Literal["shared_batch", "shared_prefix", "batched", "encoder_decoder"]
Places = list[list[int]]  # where the answer tokens of each computed sequence are predicted
_NOT_FOR_THE_MODEL = ("labels", "view_tokens", "kl_rows", "rejected", "owner", "reference", "tokens_per_pair")


@dataclass(frozen=True)
class Collator:
    """Lays out the views of samples, `original` first.

    Every batch has `labels` (B, A) filled with −100 and `answer_index` (views, N) into the flattened rows. It also has
    `view_tokens` (without sharing or padding), `kl_rows` (samples whose refined view differs from the original) and,
    if rows have it, `content` (B, A). A packed batch has `input_ids` (1, T) and the row's `forest`. A padded one has
    `samples` and, view by view, rows (R, L): `input_ids`, `attention_mask`, and `position_ids` or `decoder_input_ids`.

    With `prefers` a rejected answer is one more sample, which branches off the prompt of its own sample. The batch
    then has also `rejected` (labels of these), `owner` (the sample of each), and `reference` if rows have it.

    Args:
        view_gradients: `original` puts what only other views use last, since it is computed without gradient.
        packing: `shared_batch` packs all samples into one tree, `shared_prefix` the views of each sample; `batched`
            pads on the left. `encoder_decoder` gives prompts to an encoder and answers to a decoder.
    """

    packing: BatchLayout
    views: Sequence[View]
    view_gradients: ViewGradients = "all"
    pad_token_id: int = 0
    start_token_id: int = 0
    prefers: bool = False

    def __call__(self, batch: Sequence[Row]) -> dict[str, Any]:
        owner = [b for b, row in enumerate(batch) if self.prefers and row.get("rejected")]
        samples = [*batch, *(_with_rejected_answer(batch[b]) for b in owner)]
        source_of = sources(samples, self.views, self.view_gradients)
        order = computed(source_of)
        sequences = [(list(sample[view]), list(sample["answer"])) for view in self.views for sample in samples]
        lay_out = {"batched": self._padded, "encoder_decoder": self._for_encoder}.get(self.packing)
        if lay_out is None:
            inputs, places = self._packed(sequences, order, [*range(len(batch)), *owner])
        else:
            inputs, places = lay_out([sequences[i] for i in order])
            inputs["samples"] = len(samples)
        place_of = dict(zip(order, places, strict=True))
        marks = [_trained(sample) for sample in samples]
        index = [
            position
            for i, source in enumerate(source_of)
            for position, mark in zip(place_of[source], marks[i % len(samples)], strict=True)
            if mark
        ]
        labels = [
            [token if mark else IGNORE for token, mark in zip(sample["answer"], marks[b], strict=True)]
            for b, sample in enumerate(samples)
        ]
        shifted = 0 if self.packing == "encoder_decoder" else 1  # a decoder also gets its start token
        collated: dict[str, Any] = {
            **inputs,
            "answer_index": torch.tensor(index).view(len(self.views), -1),
            "labels": right_pad(labels, IGNORE),
            "kl_rows": sum("refined" in self.views and list(row["refined"]) != list(row["original"]) for row in batch),
            "view_tokens": sum(len(prompt) + len(answer) - shifted for prompt, answer in sequences),
        }
        if all("content" in sample for sample in samples):
            collated["content"] = right_pad([sample["content"] for sample in samples], False)
        if self.prefers:
            collated["labels"], collated["rejected"] = collated["labels"].split([len(batch), len(owner)])
            collated["owner"] = torch.tensor(owner, dtype=torch.int64)
            if all("reference" in row for row in batch):
                gold = [row["reference"][0] for row in batch]
                collated["reference"] = torch.tensor([*gold, *(batch[b]["reference"][1] for b in owner)])
        return collated

    def _packed(
        self, sequences: Sequence[tuple[list[int], list[int]]], order: list[int], owner: Sequence[int]
    ) -> tuple[dict[str, Any], Places]:
        """Pack the sequences `order` into one row; `owner` is the sample to whose tree each sample belongs."""
        size = len(owner)
        tokens = {i: [*sequences[i][0], *sequences[i][1][:-1]] for i in order}
        if self.packing == "shared_batch":
            packed, leading = [order], size
        else:
            by_owner = sorted(order, key=lambda i: owner[i % size])  # stable: the views of a sample keep their order
            packed, leading = [[*group] for _, group in groupby(by_owner, key=lambda i: owner[i % size])], 1
        row = pack(
            [[tokens[i] for i in group] for group in packed],
            leading=None if self.view_gradients == "all" else leading,
        )
        index_of = dict(zip((i for group in packed for i in group), row.indices, strict=True))
        places = [index_of[i][-len(sequences[i][1]) :] for i in order]
        # torch.tensor takes six times as long on a list, a third of a batch's time.
        ids = torch.frombuffer(array("q", row.tokens), dtype=torch.int64)[None]
        return {"input_ids": ids, "forest": row.forest}, places

    def _padded(self, sequences: Sequence[tuple[list[int], list[int]]]) -> tuple[dict[str, Any], Places]:
        padded = left_pad([[*prompt, *answer[:-1]] for prompt, answer in sequences], self.pad_token_id)
        width = padded["input_ids"].shape[1]
        ends = [(number + 1) * width for number in range(len(sequences))]
        return {**padded}, [[*range(end - len(answer), end)] for end, (_, answer) in zip(ends, sequences, strict=True)]

    def _for_encoder(self, sequences: Sequence[tuple[list[int], list[int]]]) -> tuple[dict[str, Any], Places]:
        decoded = right_pad([[self.start_token_id, *answer[:-1]] for _, answer in sequences], self.pad_token_id)
        inputs = encoder_inputs([prompt for prompt, _ in sequences], self.pad_token_id)
        starts = [number * decoded.shape[1] for number in range(len(sequences))]
        places = [[*range(start, start + len(answer))] for start, (_, answer) in zip(starts, sequences, strict=True)]
        return {**inputs, "decoder_input_ids": decoded}, places


def _with_rejected_answer(row: Row) -> Row:
    rejected = {**row, "answer": row["rejected"], "trained": row.get("rejected_trained")}
    rejected.pop("content", None)  # that of the gold answer
    return rejected


def _trained(row: Row) -> list[bool]:
    return row.get("trained") or [True] * len(row["answer"])


def sources(batch: Sequence[Row], views: Sequence[View], gradients: ViewGradients = "all") -> list[int]:
    """Return by which sequence each one is computed, view by view: itself, or an earlier, equal view of its sample.

    With gradients of the original view only, the others run in a forward of their own. One of them is then always
    computed, since sharded processes (ZeRO-3, FSDP) must run equally many forwards.
    """
    size = len(batch)
    computed_by = [
        next((w for w in range(v) if list(row[views[w]]) == list(row[view])), v) * size + b
        for v, view in enumerate(views)
        for b, row in enumerate(batch)
    ]
    if gradients == "original" and len(views) > 1 and max(computed_by) < size:
        computed_by[size] = size
    return computed_by


def computed(source_of: Sequence[int]) -> list[int]:
    """Return the sequences that are computed, in order, from their `sources`."""
    return [i for i, source in enumerate(source_of) if i == source]


def counts_of(batch: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return the tokens of all views of a batch, its samples, and those whose refined view is not the original."""
    samples = len(batch["labels"])
    return batch["view_tokens"], samples, batch.get("kl_rows", samples)


@dataclass(frozen=True)
class AnswerPairs:
    """The gold and the rejected answers of a micro-batch. No tensor, so FSDP does not cast it.

    Legend: B samples, R of them with a rejected answer, N gold and M rejected tokens, A tokens of the longest answer.

    Attributes:
        targets: (N + M,) the tokens, the `gold` ones first.
        answers: (B + R, A) bool, the places of these tokens in their answers.
        owner: (R,) the sample of each rejected answer.
        reference: (B + R,) log-probabilities of the answers by the reference; None without one.
        tokens_per_pair: Gold tokens / pairs, of all micro-batches that the loss is a mean over.
    """

    targets: Tensor
    gold: int
    answers: Tensor
    owner: Tensor
    reference: Tensor | None
    tokens_per_pair: Tensor

    @property
    def size(self) -> int:
        return len(self.answers) - len(self.owner)

    @classmethod
    def of(cls, batch: Mapping[str, Any]) -> Self:
        """Return the pairs of a batch, by itself or with the `tokens_per_pair` of a whole step."""
        labels, owner = batch["labels"], batch["owner"]
        both, gold = torch.cat([labels, batch["rejected"]]), int(labels.ne(IGNORE).sum())
        ratio = batch.get("tokens_per_pair", torch.tensor(gold / max(len(owner), 1), device=labels.device))
        places = both.ne(IGNORE)
        return cls(both[places], gold, places, owner, batch.get("reference"), ratio)

    def to(self, device: torch.device) -> Self:
        tensors: dict[str, Any] = {
            name: tensor.to(device) for name, tensor in vars(self).items() if isinstance(tensor, Tensor)
        }
        return replace(self, **tensors)


def model_inputs(batch: Mapping[str, Any], device: torch.device | None = None) -> dict[str, Any]:
    """Turn a collator's batch into model inputs, with `targets` and `content` (N,) instead of padded rows.

    The rejected answers of a batch become `pairs`. Tensors move to `device`, if one is given.
    """
    batch = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in batch.items()}
    inputs = {name: value for name, value in batch.items() if name not in _NOT_FOR_THE_MODEL}
    answers = batch["labels"].ne(IGNORE)
    inputs["targets"] = batch["labels"][answers]
    if "content" in inputs:
        inputs["content"] = inputs["content"][answers]
    if "owner" in batch:
        inputs["pairs"] = AnswerPairs.of(batch)
    return inputs


def left_pad(rows: Sequence[Sequence[int]], pad: int) -> dict[str, Tensor]:
    """Return `input_ids`, `attention_mask` (by length) and `position_ids`, (rows, longest), int64, right-aligned."""
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
