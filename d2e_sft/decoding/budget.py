"""How many prompts are decoded at a time, and in which batches they enter.

Both follow from the memory of the hardware and the lengths of the prompts, so a command decodes the same batches each
time. What other processes use at the moment has no influence.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.decoding.pairs import Prefix, TokenPair
from d2e_sft.decoding.rows import decodes_packed
from d2e_sft.model.device import total_memory
from d2e_sft.model.packing import MIN_SHARED, common_length

# Pairs that run at a time unless a number is given; a step with more rows takes as long per row.
MOST_PAIRS = 64
# Largest share of the memory beside the weights that keys and values take.
_SHARE = 0.25

Batch = tuple[list[int], Prefix]  # the indices of its pairs, and what their prompts begin with


@dataclass(frozen=True)
class Budget:
    """Limits of what is decoded at a time.

    Attributes:
        pairs: Pairs that run at a time.
        batch: Pairs that enter together.
        tokens: Tokens of rows that run at a time, prompts and answers.
        new_tokens: Longest answer.
        refills: Whether a batch may enter while earlier ones run.
    """

    pairs: int
    batch: int
    tokens: float
    new_tokens: int
    refills: bool

    def fits(self, pairs: Sequence[TokenPair]) -> bool:
        """Whether the pairs may run at a time, if they enter one after another."""
        return self.refills and len(pairs) <= self.pairs and self.cost(pairs) <= self.tokens

    def cost(self, pairs: Sequence[TokenPair]) -> int:
        """The tokens of the pairs' rows at their longest."""
        views = [view for pair in pairs for view in (pair.original, pair.imagined) if view is not None]
        return sum(len(view) + self.new_tokens for view in views)


def budget_of(model: Any, decoding: DecodingConfig) -> Budget:
    """The budget of a model: `batch_size` pairs, or as many as fit the memory of its device, up to `MOST_PAIRS`.

    Rows that are padded or compiled run batch by batch.
    """
    refills = decodes_packed(model) and not decoding.compiled
    batch = min(decoding.group_batch_size, DecodingConfig.GROUP_BATCH_SIZE) if refills else decoding.group_batch_size
    if decoding.batch_size is not None or not refills:
        return Budget(decoding.group_batch_size, batch, math.inf, decoding.max_new_tokens, refills)
    weights = sum(one.numel() * one.element_size() for one in (*model.parameters(), *model.buffers()))
    free = max(total_memory(model.device) - weights, 0)
    return Budget(MOST_PAIRS, batch, _SHARE * free / _token_bytes(model), decoding.max_new_tokens, refills)


def _token_bytes(model: Any) -> int:
    """Bytes of a token's keys and values in all layers."""
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    key_heads = getattr(config, "num_key_value_heads", None) or heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    return int(2 * config.num_hidden_layers * key_heads * width * model.dtype.itemsize)


def batches_of(pairs: Sequence[TokenPair], budget: Budget, group_batch_size: int) -> Iterator[Batch]:
    """Cut the pairs of each group into batches, longest first, with the one `Prefix` of their group.

    Every `group_batch_size` pairs begin a new batch, as these are shared out to processes as a whole. A batch takes
    at most half of the budget's tokens, since its keys and values are copied once.
    """
    groups: dict[Hashable, list[int]] = {}
    for index, pair in enumerate(pairs):
        groups.setdefault(pair.group, []).append(index)
    for members in groups.values():
        # Longest first, so that a lack of memory shows at once.
        order = sorted(members, key=lambda index: len(pairs[index].original), reverse=True)
        views = [view for index in order for view in (pairs[index].original, pairs[index].imagined)]
        prompts = [view for view in views if view is not None]
        shared = common_length(prompts)
        prefix = Prefix(prompts[0][:shared] if shared >= MIN_SHARED else ())
        batch: list[int] = []
        for place, index in enumerate(order):
            tokens = budget.cost([pairs[one] for one in (*batch, index)])
            if batch and (place % group_batch_size == 0 or len(batch) == budget.batch or 2 * tokens > budget.tokens):
                yield batch, prefix
                batch = []
            batch.append(index)
        yield batch, prefix
