"""Batches: how long their rows are, what is padded, and which tokens are predicted; `test_attach` has the layouts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from d2e_sft.config.recipe import View
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.views import ViewEncoder
from d2e_sft.model.collation import IGNORE, BatchLayout, Collator
from tests.tiny import make_sample, tiny_tokenizer

VIEWS: tuple[View, ...] = ("original", "imagined", "refined")


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    encoder = ViewEncoder(tiny_tokenizer(), load_prompt_set("default"), VIEWS)
    encoded = [encoder.encode(make_sample(number)) for number in (1, 2, 4)]  # each view differs from the others
    return [{**item.prompts, "answer": item.answer} for item in encoded]


def _answers(batch: dict[str, Any]) -> list[list[int]]:
    return [line[line != IGNORE].tolist() for line in batch["labels"]]


def test_sharing_shortens_the_row_and_padding_lengthens_it(rows: list[dict[str, Any]]) -> None:
    packings: tuple[BatchLayout, ...] = ("shared_batch", "shared_prefix", "batched")
    batches = [Collator(packing, VIEWS)(rows) for packing in packings]
    counts = [batch["input_ids"].numel() for batch in batches]
    assert counts[0] < counts[1] < batches[2]["view_tokens"] < counts[2]


def test_padded_places_are_masked_by_length_not_by_the_pad_id(rows: list[dict[str, Any]]) -> None:
    # The end-of-turn token as the pad id, as many tokenizers have it: prompts must keep theirs.
    batch = Collator("batched", VIEWS, pad_token_id=rows[0]["answer"][-1])(rows)
    assert batch["input_ids"].shape[0] == 9
    for line, (view, row) in enumerate((view, row) for view in VIEWS for row in rows):
        ids = row[view] + row["answer"][:-1]
        assert batch["attention_mask"][line].sum() == len(ids)
        assert batch["input_ids"][line, -len(ids) :].tolist() == ids
        assert batch["position_ids"][line, -len(ids) :].tolist() == list(range(len(ids)))


def test_answer_tokens_that_are_not_trained_on_are_read_and_not_predicted(rows: list[dict[str, Any]]) -> None:
    marked = [row | {"trained": [k % 3 != 1 for k in range(len(row["answer"]))]} for row in rows]
    for collate in (Collator("shared_batch", VIEWS), Collator("batched", VIEWS, pad_token_id=1)):
        whole, batch = collate(rows), collate(marked)
        assert torch.equal(batch["input_ids"], whole["input_ids"])
        assert _answers(batch) == [[t for k, t in enumerate(row["answer"]) if k % 3 != 1] for row in rows]
        kept = [k % 3 != 1 for row in rows for k in range(len(row["answer"]))]
        assert torch.equal(batch["answer_index"], whole["answer_index"][:, torch.tensor(kept)])
