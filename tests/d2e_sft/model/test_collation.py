"""Batches: each view's answer is predicted from that view's tokens, whatever the layout."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from d2e_sft.config.recipe import View
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.views import ViewEncoder
from d2e_sft.model.collation import (
    IGNORE,
    BatchedCollator,
    EncoderDecoderCollator,
    PackedCollator,
    trained_tokens,
)
from tests.tiny import make_samples, tiny_tokenizer

VIEWS: tuple[View, ...] = ("original", "imagined", "refined")


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    encoder = ViewEncoder(tiny_tokenizer(), load_prompt_set("default"), VIEWS)
    encoded = [encoder.encode(sample) for sample in make_samples(3)]
    return [{**item.prompts, "answer": item.answer} for item in encoded]


def _answers(batch: dict[str, Any]) -> list[list[int]]:
    return [line[line != IGNORE].tolist() for line in batch["labels"]]


@pytest.mark.parametrize(
    "collate",
    [
        PackedCollator(VIEWS),
        PackedCollator(VIEWS, view_gradients="original"),
        PackedCollator(VIEWS, share_across_samples=False),
        PackedCollator(VIEWS, share_across_samples=False, view_gradients="original"),
        BatchedCollator(VIEWS, pad_token_id=1),
    ],
    ids=["shared-batch", "shared-batch-original", "shared-prefix", "shared-prefix-original", "batched"],
)
def test_each_answer_token_is_predicted_by_the_token_before_it(rows: list[dict[str, Any]], collate: Any) -> None:
    batch = collate(rows)
    assert _answers(batch) == [row["answer"] for row in rows]
    tokens = batch["input_ids"].flatten()
    positions = batch["forest"].position_ids if "forest" in batch else batch["position_ids"].flatten()
    for view, index in zip(VIEWS, batch["answer_index"], strict=True):
        expected = [token for row in rows for token in (row[view] + row["answer"])[len(row[view]) - 1 : -1]]
        assert tokens[index].tolist() == expected
        places = [len(row[view]) - 1 + k for row in rows for k in range(len(row["answer"]))]
        assert positions[index].tolist() == places
    assert batch["view_tokens"] == sum(len(row[view]) + len(row["answer"]) - 1 for row in rows for view in VIEWS)


def test_sharing_shortens_the_row_and_padding_lengthens_it(rows: list[dict[str, Any]]) -> None:
    batches = [PackedCollator(VIEWS)(rows), PackedCollator(VIEWS, share_across_samples=False)(rows)]
    batches.append(BatchedCollator(VIEWS, pad_token_id=0)(rows))
    counts = [batch["input_ids"].numel() for batch in batches]
    assert counts[0] < counts[1] < batches[2]["view_tokens"] < counts[2]


def test_padded_places_are_masked_by_length_not_by_the_pad_id(rows: list[dict[str, Any]]) -> None:
    # The end-of-turn token as the pad id, as many tokenizers have it: prompts must keep theirs.
    batch = BatchedCollator(VIEWS, pad_token_id=rows[0]["answer"][-1])(rows)
    assert batch["input_ids"].shape[0] == 9
    for line, (view, row) in enumerate((view, row) for view in VIEWS for row in rows):
        ids = row[view] + row["answer"][:-1]
        assert batch["attention_mask"][line].sum() == len(ids)
        assert batch["input_ids"][line, -len(ids) :].tolist() == ids
        assert batch["position_ids"][line, -len(ids) :].tolist() == list(range(len(ids)))


def test_an_encoder_reads_the_views_and_the_decoder_the_answers(rows: list[dict[str, Any]]) -> None:
    batch = EncoderDecoderCollator(VIEWS, pad_token_id=0, start_token_id=7)(rows)
    for line, (view, row) in enumerate((view, row) for view in VIEWS for row in rows):
        assert batch["input_ids"][line][batch["attention_mask"][line].bool()].tolist() == row[view]
    width = batch["decoder_input_ids"].shape[1]
    decoder_rows = batch["decoder_input_ids"].repeat(len(VIEWS), 1).flatten()
    expected = [token for row in rows for token in [7, *row["answer"][:-1]]]
    for view, index in enumerate(batch["answer_index"]):
        assert decoder_rows[index].tolist() == expected
        assert (index // (width * len(rows)) == torch.tensor(view)).all()


def test_answer_tokens_that_are_not_trained_on_are_read_and_not_predicted(rows: list[dict[str, Any]]) -> None:
    marked = [row | {"trained": [k % 3 != 1 for k in range(len(row["answer"]))]} for row in rows]
    for collate in (PackedCollator(VIEWS), BatchedCollator(VIEWS, pad_token_id=1)):
        whole, batch = collate(rows), collate(marked)
        assert torch.equal(batch["input_ids"], whole["input_ids"])
        assert _answers(batch) == [[t for k, t in enumerate(row["answer"]) if k % 3 != 1] for row in rows]
        kept = [k % 3 != 1 for row in rows for k in range(len(row["answer"]))]
        assert torch.equal(batch["answer_index"], whole["answer_index"][:, torch.tensor(kept)])
    assert [trained_tokens(row) for row in rows] == [len(row["answer"]) for row in rows]
    assert trained_tokens(marked[0]) == sum(marked[0]["trained"])
