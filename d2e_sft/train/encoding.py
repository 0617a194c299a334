"""Samples → token views under a length rule: which fit, which are cut, and which are dropped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from d2e_sft.config.recipe import Overlong
from d2e_sft.data.sample import EventSample
from d2e_sft.data.views import EncodedSample, ViewEncoder
from d2e_sft.util.errors import UserError


@dataclass(frozen=True)
class EncodedSamples:
    """Samples after a length rule.

    Attributes:
        kept: the encoded samples, of `samples`.
        dropped, truncated: samples that were too long.
        whole: all samples, encoded without the rule.
    """

    kept: list[EncodedSample]
    samples: list[EventSample]
    dropped: list[EventSample]
    truncated: list[EventSample]
    whole: list[EncodedSample]


def encode_samples(
    samples: Sequence[EventSample],
    encoder: ViewEncoder,
    *,
    max_length: int,
    overlong: Overlong = "error",
    refuse: bool = True,
    progress: Callable[[Sequence[EventSample]], Any] = lambda samples: samples,
) -> EncodedSamples:
    """Encode samples under a length rule; answers are never cut.

    Args:
        max_length: tokens of the longest view, answer included.
        overlong: `error`, `drop`, or `truncate_context` (cut the end of the context).
        refuse: False puts samples that are too long into `dropped`, whatever the rule.
        progress: wraps the iteration, for a progress bar.

    Raises:
        UserError: samples are too long and may not be dropped, or none is left; reports their number and the longest.
    """
    result = EncodedSamples([], [], [], [], [])
    longest = 0
    for sample in progress(samples):
        encoded = encoder.encode(sample)
        result.whole.append(encoded)
        if encoded.longest > max_length and overlong == "truncate_context":
            encoded = encoder.encode(sample, max_length=max_length)
            result.truncated.append(sample)
        if encoded.longest <= max_length:
            result.kept.append(encoded)
            result.samples.append(sample)
        else:
            result.dropped.append(sample)
            longest = max(longest, encoded.longest)
    too_long = result.dropped
    if too_long and overlong != "drop" and refuse:
        what = "even without context" if overlong == "truncate_context" else "in their longest view"
        raise UserError(
            f"{len(too_long)} of {len(samples)} samples exceed data.max_length={max_length} tokens {what} "
            f"(the longest has {longest}; the first is {too_long[0].id!r} of {too_long[0].dataset!r})",
            remedy=f"raise data.max_length to {longest}, or set data.overlong=drop or data.overlong=truncate_context",
        )
    if not result.kept:
        raise UserError(
            f"all {len(samples)} samples exceed data.max_length={max_length} tokens; nothing is left",
            remedy=f"raise data.max_length; the longest has {longest} tokens",
        )
    return result
