"""Which rows of a step belong together, and what their logits become; torch only, so that it is tested without vLLM.

A sample is two requests, `original` and `imagined`, that must take the same tokens. A row finds its partner by name
and by length: both are in the step and both are about to take the token of the same index. Then both get
`z_original − α · z_imagined`. A row without such a partner is alone, and may only take the sentinel, which ends it:
no token of an answer is ever chosen undebiased.

Length alone is enough, although a row cannot see whether its partner's prompt is still being read in chunks (vLLM
then throws the partner's token away). Say the row takes a worthless token of index k because of it: its partner comes
to index k in a later step, finds the row a token further, is alone, and takes the sentinel. So a token is an answer's
if and only if *both* rows report it at the same index and it is not the sentinel; `progress.py` reads it so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

import torch
from torch import Tensor

from d2e_sft.vllm.draws import Draw

KEY = "d2e"
RowView = Literal["original", "imagined"]
# Pairs whose logits are combined at once: bounds the extra memory to a few times 32 × V floats.
_PAIRS_AT_ONCE = 32


@dataclass(frozen=True)
class PairedRow:
    """One request of a pair, as it travels in `SamplingParams.extra_args["d2e"]`.

    Attributes:
        pair: name of this submission of the pair; never used twice.
        view: which of the two requests this is.
        alpha: the debias ratio.
        sentinel: the token that ends a row that is alone; never chosen otherwise.
        done: tokens of the answer that earlier submissions chose, now at the end of the prompt.
        min_tokens: `stops` are not chosen before the answer has so many tokens.
        stops: the tokens that `min_tokens` holds back.
        plausibility: only tokens that the original view gives at least so much of its best probability; 0: all.
        draw: how to sample; None: the most probable token.
    """

    pair: str
    view: RowView
    alpha: float
    sentinel: int
    done: int = 0
    min_tokens: int = 0
    stops: tuple[int, ...] = ()
    plausibility: float = 0.0
    draw: Draw | None = None

    def as_extra_args(self) -> dict[str, Any]:
        """The value of `SamplingParams.extra_args`; plain JSON."""
        return {KEY: {**asdict(self), "stops": list(self.stops)}}


def read_row(extra_args: Mapping[str, Any] | None) -> PairedRow | None:
    """The paired row that a request's `extra_args` describe; None for a plain request.

    Raises:
        ValueError: there is a `d2e` entry that is malformed; says which field.
    """
    if not extra_args or KEY not in extra_args:
        return None
    given = extra_args[KEY]
    known = {field.name for field in fields(PairedRow)}
    if not isinstance(given, Mapping) or not {"pair", "view", "alpha", "sentinel"} <= set(given) <= known:
        raise ValueError(f"extra_args[{KEY!r}]: got {given!r}; expected pair, view, alpha and sentinel")
    draw = given.get("draw")
    row = PairedRow(
        **{
            **given,
            "stops": tuple(given.get("stops", ())),
            "draw": None if draw is None else Draw(**draw),
        }
    )
    if row.view not in ("original", "imagined"):
        raise ValueError(f"extra_args[{KEY!r}]: view {row.view!r}; expected original or imagined")
    check_ratio("alpha", row.alpha)
    if not isinstance(row.sentinel, int) or row.sentinel < 0:
        raise ValueError(f"extra_args[{KEY!r}]: sentinel {row.sentinel!r}; expected a token id")
    return row


def check_ratio(name: str, value: Any, upper: float = 1e6) -> None:
    """Raise ValueError unless the value is a number from 0 to `upper`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= upper:
        raise ValueError(f"{name}: got {value!r}; expected a number from 0 to {upper:g}")


@dataclass(frozen=True)
class InBatch:
    """A paired row in a step: where it is in the batch, and how many tokens it has taken since it was submitted."""

    index: int
    length: int
    row: PairedRow


@dataclass(frozen=True)
class Step:
    """The pairs (original, imagined) of one step, and the rows that are alone in it."""

    pairs: tuple[tuple[InBatch, InBatch], ...]
    alone: tuple[InBatch, ...]


def match(rows: Iterable[InBatch]) -> Step:
    """Pair the rows of a step by name, view and length."""
    waiting: dict[str, InBatch] = {}
    pairs: list[tuple[InBatch, InBatch]] = []
    alone: list[InBatch] = []
    for here in rows:
        other = waiting.pop(here.row.pair, None)
        if other is None:
            waiting[here.row.pair] = here
        elif other.row.view == here.row.view or other.length != here.length:
            alone += (other, here)
        else:
            pairs.append((other, here) if here.row.view == "imagined" else (here, other))
    return Step(tuple(pairs), (*alone, *waiting.values()))


def debias_rows(logits: Tensor, step: Step) -> Tensor:
    """Write the debiased logits of each pair to both its rows, and the sentinel to the rows that are alone.

    Args:
        logits: (rows, V) of the whole step, changed in place; the rows of other requests are not touched.

    Returns:
        `logits`.
    """
    for start in range(0, len(step.pairs), _PAIRS_AT_ONCE):
        _debias(logits, step.pairs[start : start + _PAIRS_AT_ONCE])
    if step.alone:
        indices = _to_device([here.index for here in step.alone], logits)
        sentinels = _to_device([here.row.sentinel for here in step.alone], logits)
        logits[indices] = float("-inf")
        logits[indices, sentinels] = 0.0
    return logits


def _debias(logits: Tensor, pairs: tuple[tuple[InBatch, InBatch], ...]) -> None:
    originals = _to_device([original.index for original, _ in pairs], logits)
    imagined = _to_device([other.index for _, other in pairs], logits)
    rows = [original.row for original, _ in pairs]
    z_original, z_imagined = logits[originals].float(), logits[imagined].float()  # (pairs, V)
    alpha = torch.tensor([row.alpha for row in rows], dtype=torch.float32).to(logits.device)[:, None]
    debiased = z_original - alpha * z_imagined
    # A token that is masked in either view (−inf) stays masked: −inf − α · (−inf) would be no number.
    debiased.masked_fill_(~(z_original.isfinite() & z_imagined.isfinite()), float("-inf"))
    debiased[torch.arange(len(pairs), device=logits.device), _to_device([row.sentinel for row in rows], logits)] = (
        float("-inf")
    )
    for place, (here, _) in enumerate(pairs):
        _restrict(debiased[place], z_original[place], here)
    debiased = debiased.to(logits.dtype)
    logits[originals] = debiased
    logits[imagined] = debiased


def _restrict(debiased: Tensor, original: Tensor, here: InBatch) -> None:
    """One pair's own options, in place: (V,) logits of the debiased distribution and of the original view."""
    row, position = here.row, here.row.done + here.length
    if row.plausibility > 0:
        floor = original.max() + torch.tensor(row.plausibility).log().to(original.device)
        debiased.masked_fill_(original < floor, float("-inf"))
    if position < row.min_tokens and row.stops:
        debiased[_to_device(list(row.stops), debiased)] = float("-inf")
    if row.draw is not None:
        row.draw.perturb(debiased, position)


def _to_device(numbers: list[int], like: Tensor) -> Tensor:
    return torch.tensor(numbers, dtype=torch.long).to(like.device, non_blocking=True)
