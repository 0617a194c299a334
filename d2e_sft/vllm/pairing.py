"""Which rows of a step belong together, and what their logits become; tested without vLLM.

A sample is two requests, `original` and `imagined`, that must take the same tokens. A row finds its partner by name
and length: both are in the step, and about to take the token of the same index. Both then get the decoder's scores of
the two rows' logits, by default `z_original − α · z_imagined`. A row without a partner may only take the sentinel,
which ends it, so no token of an answer is ever chosen by one view only.

Matching by length is enough, although a row cannot see whether its partner's prompt is still being read in chunks, in
which case vLLM discards the partner's token. Suppose the row takes a worthless token of index k for that reason. Its
partner reaches index k in a later step, finds the row one token further, has no partner, and takes the sentinel. So a
token belongs to an answer if and only if *both* rows report it at the same index and it is not the sentinel.
`requests.py` reads it so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

import torch
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic import dataclasses as checked
from torch import Tensor

from d2e_sft.config.decoding import DECODERS, DecodingConfig
from d2e_sft.decoding.decoders import named_decoder, warpers
from d2e_sft.server.openai import Alpha
from d2e_sft.util.errors import UserError, describe_validation_error

KEY = "d2e"
RowView = Literal["original", "imagined"]
# Pairs whose logits are combined at once; bounds the extra memory to a few times 32 × V floats.
_PAIRS_AT_ONCE = 32
# Stands for the logit of a token that is masked in either view, so that decoders compute without infinities.
_MASKED = -1e9
_MASK = (1 << 64) - 1
# option → the value that does not change logits
_NEUTRAL: dict[str, Any] = {
    "n": 1,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "logprobs": None,
    "prompt_logprobs": None,
    "logprob_token_ids": None,
    "prompt_logprob_token_ids": None,
    "structured_outputs": None,
    "logit_bias": None,
    "allowed_token_ids": None,
    "bad_words": None,
    "thinking_token_budget": None,
    "trace_decode_token_ids": None,
    "repetition_detection": None,
}
# The same for options that `PairedRow` carries, in a request of the engine.
_NEUTRAL_ROW: dict[str, Any] = {"temperature": 0.0, "min_tokens": 0}


@checked.dataclass(frozen=True)
class Draw:
    """How a pair samples.

    Both rows must draw the same token, even after a resubmission. vLLM's own seeds do not guarantee this. A seed
    restarts with every submission, and a prompt that is read in chunks draws more often. So the draw adds noise to
    the logits (the Gumbel-max trick). The noise depends only on the seed and the token's index. vLLM then takes the
    largest logit, as for any greedy request.

    Attributes:
        seed: Equal seeds give equal draws, however the pair was scheduled.
        top_k: Number of most probable tokens to draw from; 0: all.
        top_p: Probability of the smallest set of tokens to draw from; 1: all.
        min_p: Least share of the best token's probability that a token needs; 0 allows all.
    """

    temperature: Annotated[float, Field(gt=0)]
    seed: int
    top_k: Annotated[int, Field(ge=0)] = 0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0

    def perturb(self, logits: Tensor, position: int) -> None:
        """Add the noise for the token at index `position` to one row (V,), in place; its largest entry is the draw."""
        warped = warpers(self.temperature, self.top_k, self.top_p, self.min_p)(None, logits[None])[0]
        generator = torch.Generator(logits.device).manual_seed(_mixed(self.seed, position))
        noise = torch.empty_like(logits).exponential_(generator=generator)
        torch.sub(warped, noise.clamp_min_(torch.finfo(logits.dtype).tiny).log_(), out=logits)


def _mixed(seed: int, position: int) -> int:
    """Mix both into a 64-bit number (the finaliser of SplitMix64), so that neighbouring seeds share no draws."""
    value = (seed * 0x9E3779B97F4A7C15 + position * 0xD1B54A32D192ED03 + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return (value ^ (value >> 31)) >> 1


@checked.dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class PairedRow:
    """One request of a pair, as it travels in `SamplingParams.extra_args["d2e"]`.

    Attributes:
        pair: Unique name of this submission of the pair.
        sentinel: The token that ends a row without a partner; never chosen otherwise.
        done: Number of answer tokens from earlier submissions, now at the end of the prompt.
        stops: Tokens that are not chosen before the answer has `min_tokens` tokens.
        plausibility: Least share of the original view's best probability that a token needs; 0 allows all.
        draw: How to sample; None: the most probable token.
    """

    pair: str
    view: RowView
    alpha: Alpha
    sentinel: Annotated[int, Field(ge=0)]
    done: int = 0
    min_tokens: int = 0
    stops: tuple[int, ...] = ()
    plausibility: float = 0.0
    draw: Draw | None = None
    decoder: str = "d2e"

    def as_extra_args(self) -> dict[str, Any]:
        """The value for `SamplingParams.extra_args`, as plain JSON."""
        return {KEY: {**asdict(self), "stops": list(self.stops)}}


_ROW = TypeAdapter(PairedRow)


def read_row(extra_args: Mapping[str, Any] | None) -> PairedRow | None:
    """The paired row in `extra_args`; None for a plain request, ValueError with the field if `d2e` is malformed."""
    if not extra_args or KEY not in extra_args:
        return None
    try:
        row = _ROW.validate_python(extra_args[KEY])
        check_decoder(row.decoder)
    except ValidationError as error:
        raise ValueError(f"extra_args[{KEY!r}]: {describe_validation_error(error)}") from None
    except UserError as error:
        raise ValueError(error.one_line) from None
    return row


def check_decoder(decoder: Any) -> None:
    """Raise UserError for unknown decoders or options, and custom functions, which the engine does not import."""
    name, _, _ = DecodingConfig(decoder=decoder).decoder.partition(":")
    if name not in DECODERS:
        raise UserError(
            f"decoder {decoder}: custom functions are not supported in vLLM; expected {', '.join(DECODERS)}",
            "decode in process: --engine transformers",
        )


def check_sampling(parameters: Any, *, row: bool = False) -> None:
    """Raise ValueError, with its name, for an option that vLLM would apply to each row separately.

    `row` is of one request of the pair; False: `parameters` are of the pair as the user sent it.
    """
    for name, neutral in (_NEUTRAL | _NEUTRAL_ROW if row else _NEUTRAL).items():
        value = getattr(parameters, name, neutral)
        empty = neutral is None and (value is None or (hasattr(value, "__len__") and len(value) == 0))
        if not empty and value != neutral:
            raise ValueError(f"{name}={value!r}: cannot be used with debiased decoding; leave it at {neutral!r}")


@dataclass(frozen=True)
class InBatch:
    """A paired row in a step: its index in the batch, and the tokens it has taken since it was submitted."""

    index: int
    length: int
    row: PairedRow

    @property
    def position(self) -> int:
        """The index, in the answer, of the token that is about to be chosen."""
        return self.row.done + self.length


Matched = tuple[InBatch, InBatch]


def match(rows: Iterable[InBatch]) -> tuple[list[Matched], list[InBatch]]:
    """The pairs (original, imagined) of a step, by name, view and length, and the rows without a partner."""
    waiting: dict[str, InBatch] = {}
    pairs: list[Matched] = []
    unpaired: list[InBatch] = []
    for current in rows:
        partner = waiting.pop(current.row.pair, None)
        if partner is None:
            waiting[current.row.pair] = current
        elif partner.row.view == current.row.view or partner.length != current.length:
            unpaired += (partner, current)
        else:
            pairs.append((partner, current) if current.row.view == "imagined" else (current, partner))
    return pairs, [*unpaired, *waiting.values()]


def debias_rows(logits: Tensor, rows: Iterable[InBatch]) -> Tensor:
    """Write the debiased logits of each pair to both its rows, and the sentinel to rows without a partner.

    `logits` (all rows, V) are changed in place and returned; rows of other requests than `rows` stay as they are.
    """
    pairs, unpaired = match(rows)
    for start in range(0, len(pairs), _PAIRS_AT_ONCE):
        _debias(logits, pairs[start : start + _PAIRS_AT_ONCE])
    if unpaired:
        indices = _to_device([item.index for item in unpaired], logits)
        sentinels = _to_device([item.row.sentinel for item in unpaired], logits)
        logits[indices] = float("-inf")
        logits[indices, sentinels] = 0.0
    return logits


def _debias(logits: Tensor, pairs: list[Matched]) -> None:
    originals = _to_device([original.index for original, _ in pairs], logits)
    imagined = _to_device([partner.index for _, partner in pairs], logits)
    rows = [original.row for original, _ in pairs]
    z_original, z_imagined = logits[originals].float(), logits[imagined].float()  # (pairs, V)
    masked = ~(z_original.isfinite() & z_imagined.isfinite())
    x, y = z_original.masked_fill(masked, _MASKED), z_imagined.masked_fill(masked, _MASKED)
    alpha = torch.tensor([row.alpha for row in rows], dtype=torch.float32).to(x.device)[:, None]
    debiased = torch.empty_like(x)
    for decoder in dict.fromkeys(row.decoder for row in rows):
        places = _to_device([number for number, row in enumerate(rows) if row.decoder == decoder], logits)
        debiased[places] = named_decoder(decoder)(x[places], y[places], alpha[places])
    debiased.masked_fill_(masked, float("-inf"))
    sentinels = _to_device([row.sentinel for row in rows], logits)[:, None]
    debiased.scatter_(1, sentinels, float("-inf"))
    for place, (original, _) in enumerate(pairs):
        _restrict(debiased[place], z_original[place], original)
    # Where a view has overflowed, both rows take the sentinel, so that the pair is given up with an error.
    overflowed = ~(z_original.amax(-1).isfinite() & z_imagined.amax(-1).isfinite())[:, None]  # a NaN is the largest
    debiased.masked_fill_(overflowed, float("-inf"))
    debiased.scatter_(1, sentinels, torch.where(overflowed, 0.0, float("-inf")))
    debiased = debiased.to(logits.dtype)
    logits[originals] = debiased
    logits[imagined] = debiased


def _restrict(debiased: Tensor, original: Tensor, item: InBatch) -> None:
    """Apply one pair's options to its debiased logits (V,), in place; `original` are those of the original view."""
    row, position = item.row, item.position
    if row.plausibility > 0:
        floor = original.max() + torch.tensor(row.plausibility).log().to(original.device)
        debiased.masked_fill_(original < floor, float("-inf"))
    if position < row.min_tokens and row.stops:
        debiased[_to_device(list(row.stops), debiased)] = float("-inf")
    if row.draw is not None:
        row.draw.perturb(debiased, position)


def _to_device(numbers: list[int], like: Tensor) -> Tensor:
    return torch.tensor(numbers, dtype=torch.long).to(like.device, non_blocking=True)


class BatchRows:
    """The V1 runner: a batch whose rows come, go and move; a row's length is that of its list of output tokens.

    The list is the runner's own and grows with every token. With async scheduling it may hold a placeholder, so its
    length is always right, unlike its content.
    """

    def __init__(self) -> None:
        self._rows: dict[int, tuple[PairedRow, list[int]]] = {}

    def update(
        self,
        removed: Iterable[int],
        added: Iterable[tuple[int, PairedRow | None, list[int]]],
        moved: Iterable[tuple[int, int, Any]],
    ) -> None:
        """Apply removals, additions and moves, in this order; a move with `.name == "SWAP"` goes both ways."""
        for index in removed:
            self._rows.pop(index, None)
        for index, row, outputs in added:
            if row is None:
                self._rows.pop(index, None)
            else:
                self._rows[index] = (row, outputs)
        for source, target, direction in moved:
            mover, displaced = self._rows.pop(source, None), self._rows.pop(target, None)
            if mover is not None:
                self._rows[target] = mover
            if displaced is not None and direction.name == "SWAP":
                self._rows[source] = displaced

    def in_batch(self) -> list[InBatch]:
        """The paired rows of the step whose tokens are chosen next."""
        return [InBatch(index, len(outputs), row) for index, (row, outputs) in self._rows.items()]


class SlotRows:
    """Model Runner V2: a request keeps a slot, and each step lists its slots. Not tested on a device.

    `req_states` has the runner's `prompt_len` and `prefill_len` by slot.
    """

    def __init__(self, req_states: Any) -> None:
        self._states = req_states
        self._rows: dict[int, PairedRow] = {}

    def add(self, slot: int, row: PairedRow | None) -> bool:
        """Give the slot to a request; returns whether it is a paired one."""
        if row is None:
            self._rows.pop(slot, None)
        else:
            self._rows[slot] = row
        return row is not None

    def in_batch(self, ctx: Any, logits_rows: int) -> list[InBatch]:
        """The paired rows of a step, without those whose prompt is still being read."""
        slots = ctx.idx_mapping_np.tolist()
        if not any(slot in self._rows for slot in slots):
            return []
        if logits_rows != len(slots):  # speculative decoding: several rows per request, which cannot be paired
            expanded = ctx.expanded_idx_mapping.tolist()
            return [
                InBatch(index, -index - 1, self._rows[slot])
                for index, slot in enumerate(expanded)
                if slot in self._rows
            ]
        in_step = []
        for index, (slot, tokens) in enumerate(zip(slots, ctx.seq_lens_upper_bound_np.tolist(), strict=True)):
            if slot in self._rows and tokens >= self._states.prefill_len.np[slot]:
                length = int(tokens - self._states.prompt_len.np[slot])
                in_step.append(InBatch(index, length, self._rows[slot]))
        return in_step
