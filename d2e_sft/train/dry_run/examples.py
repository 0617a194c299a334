"""Rows as the model sees them: percentiles of their lengths, and a few rendered in full."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, takewhile
from operator import itemgetter
from typing import Any

import numpy as np

from d2e_sft.data.sample import EventSample
from d2e_sft.data.views import EncodedSample
from d2e_sft.model.packing import pack
from d2e_sft.train.rows import TokenRows
from d2e_sft.util.terminal import filled, terminal_width

PERCENTILES = (50, 90, 95, 99, 100)


def length_table(whole: Sequence[EncodedSample]) -> list[str]:
    """Percentiles of token counts before the length rule, as lines of a table."""
    rows: dict[str, list[int]] = {"longest view + answer": [item.longest for item in whole]}
    for view in whole[0].prompts:
        rows[f"prompt, {view}"] = [len(item.prompts[view]) for item in whole]
    rows["answer"] = [len(item.answer) for item in whole]
    if rejected := [len(item.rejected) for item in whole if item.rejected]:
        rows["rejected answer"] = rejected
    head = "".join(f"{'max' if p == 100 else f'p{p}':>7}" for p in PERCENTILES)
    lines = [f"{'tokens':<24}{head}"]
    for name, lengths in rows.items():
        ranked = np.percentile(lengths, PERCENTILES, method="inverted_cdf")  # nearest ranks
        lines.append(f"{name:<24}" + "".join(f"{value:>7}" for value in ranked))
    return lines


def example_lines(rows: TokenRows, tokenizer: Any) -> list[str]:
    """Three samples as lines: the first, one of middle length, and the longest."""
    kept, lines = rows.encoded.kept, []
    by_length = sorted(range(len(kept)), key=lambda i: kept[i].longest)
    for which, i in (("first", 0), ("of middle length", by_length[len(kept) // 2]), ("longest", by_length[-1])):
        lines += [*render_example(which, rows.samples[i], kept[i], tokenizer), ""]
    return lines[:-1]


def render_example(which: str, sample: EventSample, encoded: EncodedSample, tokenizer: Any) -> list[str]:
    """A sample as lines: each view's tokens decoded, special tokens too, and what of them is trained on."""
    sequences = [[*prompt, *encoded.answer] for prompt in encoded.prompts.values()]
    separate = sum(map(len, sequences))
    lines = [f"{which}: {sample.id} ({sample.dataset}, {sample.format})"]
    if len(sequences) > 1:
        shared = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, zip(*sequences, strict=False)))
        packed = len(pack([list(dict.fromkeys(map(tuple, sequences)))]).tokens)  # equal views are computed once
        lines.append(
            f"  the views begin with {shared} tokens in common; {separate} tokens apart, {packed} in a packed row"
        )
    marks = encoded.trained or [True] * len(encoded.answer)
    pairs = groupby(zip(marks, encoded.answer, strict=True), key=itemgetter(0))
    runs = [(trained, _decoded(tokenizer, [token for _, token in run])) for trained, run in pairs]
    for view, prompt in encoded.prompts.items():
        lines.append(f"  {view}: prompt {len(prompt)} + answer {len(encoded.answer)} tokens")
        for trained, text in [(False, _decoded(tokenizer, prompt)), *runs]:
            lines += _marked("    > " if trained else "    | ", text)
    if encoded.rejected:
        lines.append(f"  rejected answer: {len(encoded.rejected)} tokens")
        lines += _marked("    < ", _decoded(tokenizer, encoded.rejected))
    return lines


def _marked(mark: str, text: str) -> list[str]:
    width = terminal_width()
    return [f"{mark}{one}" if len(mark + one) <= width else filled(one, lead=mark) for one in text.split("\n")]


def _decoded(tokenizer: Any, ids: list[int]) -> str:
    text: str = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return text
