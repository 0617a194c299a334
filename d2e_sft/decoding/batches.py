"""Many prompts: which are decoded together, and what they begin with computed once for all of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from d2e_sft.decoding.generate import generate_debiased
from d2e_sft.decoding.packed_rows import Prefix
from d2e_sft.model.packing import MIN_SHARED, common_length


def decode_prompts(
    model: Any,
    originals: Sequence[Sequence[int]],
    imagined: Sequence[Sequence[int]] | None = None,
    *,
    alpha: float | Sequence[float] = 0.5,
    batch_size: int = 16,
    groups: Sequence[Hashable] | None = None,
    on_batch: Callable[[list[int], list[list[int]]], object] = lambda indices, answers: None,
    **options: Any,
) -> list[list[int]]:
    """Decode many prompts in batches of similar length; options as for `generate_debiased`.

    Args:
        groups: prompts of one group (a format, a dataset) begin alike and share their batches; None: all are one.
        on_batch: called after each batch with the indices of its prompts and their new tokens.

    Returns:
        the new token ids of each prompt, in the order given.

    Raises:
        UserError: as `generate_debiased`.
        ValueError: a list is of another length than `originals`, or `batch_size` is below 1.
    """
    results: list[list[int]] = [[] for _ in originals]
    alphas = [alpha] * len(originals) if isinstance(alpha, float | int) else list(alpha)
    _check_lengths(len(originals), {"imagined": imagined, "alpha": alphas, "groups": groups})
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size}; expected 1 or more")
    for members in _members(groups, len(originals)):
        # The longest first: if memory does not suffice, that shows at once.
        order = sorted(members, key=lambda i: len(originals[i]), reverse=True)
        prefix = _common_prefix([originals[i] for i in order], [imagined[i] for i in order] if imagined else [])
        for start in range(0, len(order), batch_size):
            indices = order[start : start + batch_size]
            answers = generate_debiased(
                model,
                [originals[i] for i in indices],
                None if imagined is None else [imagined[i] for i in indices],
                alpha=[alphas[i] for i in indices],
                names=indices,
                prefix=prefix,
                **options,
            )
            for i, answer in zip(indices, answers, strict=True):
                results[i] = answer
            on_batch(indices, answers)
    return results


def _check_lengths(count: int, given: Mapping[str, Sequence[Any] | None]) -> None:
    for name, values in given.items():
        if values is not None and len(values) != count:
            raise ValueError(f"{len(values)} values of {name} for {count} prompts")


def _members(groups: Sequence[Hashable] | None, count: int) -> list[list[int]]:
    if groups is None:
        return [list(range(count))] if count else []
    members: dict[Hashable, list[int]] = {}
    for i, group in enumerate(groups):
        members.setdefault(group, []).append(i)
    return list(members.values())


def _common_prefix(originals: Sequence[Sequence[int]], imagined: Sequence[Sequence[int]]) -> Prefix:
    sequences = [*originals, *imagined]
    length = common_length(sequences)
    return Prefix(sequences[0][:length] if length >= MIN_SHARED else ())
