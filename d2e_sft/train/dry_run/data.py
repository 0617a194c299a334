"""What a recipe's training data look like to the model: lengths, rows over the limit, and samples as they are seen."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from tqdm import tqdm

from d2e_sft.config.recipe import Recipe
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import BadRow, EventSample, read_samples
from d2e_sft.data.views import EncodedSample, ViewEncoder, encode_samples
from d2e_sft.model.packing import pack
from d2e_sft.train.prepare import choose_samples
from d2e_sft.util.errors import UserError

PERCENTILES = (50, 90, 95, 99, 100)


@dataclass(frozen=True)
class EncodedRecipe:
    """The rows of a recipe as training would see them; where it would stop, the rows that it would not stop for."""

    in_file: int
    samples: list[EventSample]  # those of `kept`
    kept: list[EncodedSample]
    uncut: list[EncodedSample]  # every chosen row before the length rule
    cut: int
    refused: int  # too long, also after cutting where the recipe cuts
    bad_rows: int


def encode_recipe(recipe: Recipe, tokenizer: Any, *, encoder_decoder: bool = False) -> EncodedRecipe:
    """Read and encode the training rows; rows over data.max_length are counted, whatever the recipe does about them.

    Args:
        encoder_decoder: the model is one, see `ViewEncoder`.

    Raises:
        UserError: as `read_samples`; or no row is short enough.
    """
    data, bad_rows = recipe.data, list[BadRow]()
    in_file = read_samples(data.train, bad_rows=bad_rows if data.skip_bad else None)
    chosen = choose_samples(in_file, data.max_samples, recipe.train.seed)
    prompt_set = load_prompt_set(data.prompt_set)
    encoder = ViewEncoder(tokenizer, prompt_set, recipe.d2e.views, encoder_decoder=encoder_decoder)
    uncut = encode_samples(
        chosen, encoder, max_length=sys.maxsize, progress=lambda rows: tqdm(rows, desc="tokenising")
    ).kept
    samples: list[EventSample] = []
    kept: list[EncodedSample] = []
    cut = refused = 0
    for sample, whole in zip(chosen, uncut, strict=True):
        encoded = whole
        if whole.longest > data.max_length and data.overlong == "truncate_context":
            encoded, cut = encoder.encode(sample, max_length=data.max_length), cut + 1
        if encoded.longest > data.max_length:
            refused += 1
            continue
        samples.append(sample)
        kept.append(encoded)
    if not kept:
        raise UserError(
            f"all {len(chosen)} samples exceed data.max_length={data.max_length} tokens; nothing is left",
            remedy=f"raise data.max_length; the longest has {max(item.longest for item in uncut)} tokens",
        )
    return EncodedRecipe(len(in_file), samples, kept, uncut, cut, refused, len(bad_rows))


def describe_overlong(recipe: Recipe, encoded: EncodedRecipe) -> list[str]:
    """Lines that say how many rows are too long and what training would do about them."""
    limit, over = recipe.data.max_length, sum(item.longest > recipe.data.max_length for item in encoded.uncut)
    lines = [f"longer than data.max_length={limit}: {over} of {len(encoded.uncut)} samples"]
    if not over:
        return lines
    rule = recipe.data.overlong
    if rule == "drop":
        return [*lines, f"  data.overlong=drop: training would leave out {encoded.refused}"]
    if rule == "truncate_context":
        lines.append(f"  data.overlong=truncate_context: training would cut the context of {encoded.cut}")
    if encoded.refused:
        longest = max(item.longest for item in encoded.uncut)
        lines.append(
            f"  training would stop: data.overlong={rule} allows no sample over the limit, and {encoded.refused} are; "
            f"raise data.max_length to {longest}, or set data.overlong=drop"
            + (" or truncate_context" if rule == "error" else "")
        )
    return lines


def length_table(encoded: EncodedRecipe) -> list[str]:
    """Percentiles of token counts before the length rule, as lines of a table."""
    rows: dict[str, list[int]] = {"longest view + answer": [item.longest for item in encoded.uncut]}
    for view in encoded.uncut[0].prompts:
        rows[f"prompt, {view}"] = [len(item.prompts[view]) for item in encoded.uncut]
    rows["answer"] = [len(item.answer) for item in encoded.uncut]
    head = "".join(f"{'max' if p == 100 else f'p{p}':>7}" for p in PERCENTILES)
    lines = [f"{'tokens':<24}{head}"]
    for name, lengths in rows.items():
        lines.append(f"{name:<24}" + "".join(f"{percentile(lengths, p):>7}" for p in PERCENTILES))
    return lines


def percentile(values: Sequence[int], percent: int) -> int:
    """The smallest value that at least `percent` per cent of the values do not exceed (nearest rank)."""
    return sorted(values)[max(-(-len(values) * percent // 100), 1) - 1]


def example_indices(kept: Sequence[EncodedSample]) -> dict[str, int]:
    """Which samples to show: the first, one of middle length, and the longest."""
    by_length = sorted(range(len(kept)), key=lambda i: kept[i].longest)
    return {"first": 0, "of middle length": by_length[len(kept) // 2], "longest": by_length[-1]}


def render_example(which: str, sample: EventSample, encoded: EncodedSample, tokenizer: Any) -> list[str]:
    """A sample as lines: each view's tokens decoded, special tokens too, and what of them is trained on."""
    sequences = [[*prompt, *encoded.answer] for prompt in encoded.prompts.values()]
    separate = sum(map(len, sequences))
    lines = [f"{which}: {sample.id} ({sample.dataset}, {sample.format})"]
    if len(sequences) > 1:
        shared = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, zip(*sequences, strict=False)))
        packed = len(pack([sequences]).tokens)
        lines.append(
            f"  the views begin with {shared} tokens in common; {separate} tokens apart, {packed} in a packed row"
        )
    answer = _decoded(tokenizer, encoded.answer)
    for view, prompt in encoded.prompts.items():
        lines.append(f"  {view}: prompt {len(prompt)} + answer {len(encoded.answer)} tokens")
        lines += [f"    | {line}" for line in _decoded(tokenizer, prompt).split("\n")]
        lines += [f"    > {line}" for line in answer.split("\n")]
    return lines


def _decoded(tokenizer: Any, ids: list[int]) -> str:
    text: str = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return text
