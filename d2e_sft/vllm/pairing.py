"""Which rows of a step belong together, and what their logits become; torch only, so that it is tested without vLLM.

A sample is two requests, `original` and `imagined`, that must take the same tokens. A row finds its partner by name
and by length: both are in the step and both are about to take the token of the same index. Then both get the scores
that the decoder makes of the two rows' logits, `z_original − α · z_imagined` unless another is chosen. A row without
such a partner is alone, and may only take the sentinel, which ends it: no token of an answer is ever chosen by one
view alone.

Length alone is enough, although a row cannot see whether its partner's prompt is still being read in chunks (vLLM
then throws the partner's token away). Say the row takes a worthless token of index k because of it: its partner comes
to index k in a later step, finds the row a token further, is alone, and takes the sentinel. So a token is an answer's
if and only if *both* rows report it at the same index and it is not the sentinel; `requests.py` reads it so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

import torch
from torch import Tensor

from d2e_sft.config.decoding import DECODERS, DecodingConfig, check_alpha
from d2e_sft.decoding.decoders import named_decoder
from d2e_sft.util.errors import UserError

KEY = "d2e"
RowView = Literal["original", "imagined"]
# Pairs whose logits are combined at once: bounds the extra memory to a few times 32 × V floats.
_PAIRS_AT_ONCE = 32
# The logit of a token that is masked in either view, while a decoder computes: its probability is 0, and no number is
# infinite.
_MASKED = -1e9
_MASK = (1 << 64) - 1
# option → the value that leaves the logits alone
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
# Of a request in the engine, where the pair's own record has them (see `PairedRow`).
_NEUTRAL_ROW: dict[str, Any] = {"temperature": 0.0, "min_tokens": 0}


@dataclass(frozen=True)
class Draw:
    """How a pair samples: one draw for both rows.

    Both rows must draw the same token, also after they were submitted again. vLLM's own seeds cannot promise it (a
    seed starts anew with every submission, and a prompt read in chunks draws more often than one read at once). So the
    draw is made here, as noise on the logits that depends on the request's seed and the token's index alone (the
    Gumbel-max trick): vLLM then takes the largest, as it does for any greedy request.

    Attributes:
        temperature: above 0.
        seed: the same seed gives the same draws, however the pair was scheduled.
        top_k: the most probable tokens only; 0: all.
        top_p: the smallest set of tokens with so much probability; 1: all.
        min_p: tokens with at least so much of the best token's probability; 0: all.
    """

    temperature: float
    seed: int
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"temperature: got {self.temperature!r}; expected a number above 0")
        if self.top_k < 0 or not 0 < self.top_p <= 1 or not 0 <= self.min_p <= 1:
            raise ValueError(
                f"top_k {self.top_k}, top_p {self.top_p}, min_p {self.min_p}: expected top_k from 0, "
                "top_p above 0 and at most 1, min_p from 0 to 1"
            )

    def perturb(self, logits: Tensor, position: int) -> None:
        """Add the noise of the token of index `position` to one row (V,), in place: its largest entry is the draw."""
        logits.div_(self.temperature)
        self._keep_probable(logits)
        generator = torch.Generator(logits.device).manual_seed(_mixed(self.seed, position))
        noise = torch.empty_like(logits).exponential_(generator=generator)
        logits.sub_(noise.clamp_min_(torch.finfo(logits.dtype).tiny).log_())

    def _keep_probable(self, logits: Tensor) -> None:
        if self.min_p > 0:
            probabilities = logits.softmax(-1)
            logits.masked_fill_(probabilities < self.min_p * probabilities.max(), float("-inf"))
        if 0 < self.top_k < logits.numel():
            logits.masked_fill_(logits < logits.topk(self.top_k).values[-1], float("-inf"))
        if self.top_p < 1:
            values, order = logits.sort(descending=True)
            # A token is dropped when those before it already have the mass; the first one therefore stays.
            before = values.softmax(-1).cumsum(-1).roll(1)
            before[0] = 0.0
            logits[order[before >= self.top_p]] = float("-inf")


def _mixed(seed: int, position: int) -> int:
    """A 64-bit number from both (the finaliser of SplitMix64): neighbouring seeds share no draws."""
    value = (seed * 0x9E3779B97F4A7C15 + position * 0xD1B54A32D192ED03 + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return (value ^ (value >> 31)) >> 1


@dataclass(frozen=True)
class PairedRow:
    """One request of a pair, as it travels in `SamplingParams.extra_args["d2e"]`.

    Attributes:
        pair: name of this submission of the pair; never used twice.
        view: which of the two requests this is.
        alpha: the debias ratio, of the decoder `d2e`.
        sentinel: the token that ends a row that is alone; never chosen otherwise.
        done: tokens of the answer that earlier submissions chose, now at the end of the prompt.
        min_tokens: `stops` are not chosen before the answer has so many tokens.
        stops: the tokens that `min_tokens` holds back.
        plausibility: only tokens that the original view gives at least so much of its best probability; 0: all.
        draw: how to sample; None: the most probable token.
        decoder: what both rows' logits become, as `DecodingConfig` takes it.
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
    decoder: str = "d2e"

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
    try:
        check_alpha(row.alpha)
        check_decoder(row.decoder)
    except UserError as error:
        raise ValueError(error.message) from None
    if not isinstance(row.sentinel, int) or row.sentinel < 0:
        raise ValueError(f"extra_args[{KEY!r}]: sentinel {row.sentinel!r}; expected a token id")
    return row


def check_decoder(decoder: Any) -> None:
    """Refuse what is no decoder of this package: the engine imports no function that a request names.

    Raises:
        UserError: no such decoder or option of it, or a function of one's own.
    """
    name, _, _ = DecodingConfig(decoder=decoder).decoder.partition(":")
    if name not in DECODERS:
        raise UserError(
            f"decoder {decoder}: vLLM's engine imports no functions of one's own; expected {', '.join(DECODERS)}",
            "decode in process: --engine transformers",
        )


def refuse_options(parameters: Any, *, row: bool = False) -> None:
    """Raise ValueError where SamplingParams hold an option that does not fit a pair.

    vLLM would apply it to each row by itself, or to what the row no longer is.

    Args:
        parameters: vLLM's SamplingParams.
        row: they are those of one request of the pair; else of the pair as a user asked for it.
    """
    for name, neutral in (_NEUTRAL | _NEUTRAL_ROW if row else _NEUTRAL).items():
        value = getattr(parameters, name, neutral)
        empty = neutral is None and (value is None or (hasattr(value, "__len__") and len(value) == 0))
        if not empty and value != neutral:
            raise ValueError(f"{name}={value!r}: cannot be used with debiased decoding; leave it at {neutral!r}")


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
    masked = ~(z_original.isfinite() & z_imagined.isfinite())
    debiased = _scores(z_original.masked_fill(masked, _MASKED), z_imagined.masked_fill(masked, _MASKED), rows)
    debiased.masked_fill_(masked, float("-inf"))  # a token that is masked in either view stays masked
    debiased[torch.arange(len(pairs), device=logits.device), _to_device([row.sentinel for row in rows], logits)] = (
        float("-inf")
    )
    for place, (here, _) in enumerate(pairs):
        _restrict(debiased[place], z_original[place], here)
    debiased = debiased.to(logits.dtype)
    logits[originals] = debiased
    logits[imagined] = debiased


def _scores(original: Tensor, imagined: Tensor, rows: list[PairedRow]) -> Tensor:
    """(pairs, V) what the decoder of each pair makes of its logits."""
    alpha = torch.tensor([row.alpha for row in rows], dtype=torch.float32).to(original.device)[:, None]
    places: dict[str, list[int]] = {}
    for place, row in enumerate(rows):
        places.setdefault(row.decoder, []).append(place)
    scores = torch.empty_like(original)
    for decoder, of_decoder in places.items():
        at = _to_device(of_decoder, original)
        scores[at] = named_decoder(decoder)(original[at], imagined[at], alpha[at])
    return scores


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
