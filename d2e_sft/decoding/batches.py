"""Many prompts, or samples: which are decoded together, and what they begin with computed once for all of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.data.chat_template import pad_id as pad_id_of
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import EventSample
from d2e_sft.data.views import ViewEncoder
from d2e_sft.decoding.generate import generate_debiased, stop_token_ids
from d2e_sft.decoding.rows import Prefix
from d2e_sft.model.packing import MIN_SHARED, common_length


def answer_samples(
    model: Any,
    tokenizer: Any,
    samples: Sequence[EventSample],
    decoding: DecodingConfig = DecodingConfig(),
    *,
    alpha: Sequence[float] | None = None,
    prompt_set: str = "default",
    max_length: int | None = None,
) -> list[str]:
    """What the model answers to each sample: prompts by the same wording as in training, decoded debiased.

    Args:
        model: a transformers model in eval mode.
        tokenizer: its own.
        samples: event-reasoning samples; one without context is decoded plainly.
        alpha: the debias ratio of each sample; None: that of `decoding`.
        prompt_set: wording, by name or as a YAML file.
        max_length: tokens of a prompt at most; the end of a longer context is cut off. None cuts nothing.

    Returns:
        one text a sample, in order.

    Raises:
        UserError: an α is out of range, or the model has no chat template.
    """
    encoder = ViewEncoder(
        tokenizer,
        load_prompt_set(prompt_set),
        ("original", "imagined"),
        encoder_decoder=model.config.is_encoder_decoder,
    )
    decoded = decode_prompts(
        model,
        [encoder.prompt_ids(sample, "original", max_length) for sample in samples],
        [encoder.prompt_ids(sample, "imagined") for sample in samples],
        decoding,
        alpha=alpha,
        groups=[(sample.format, sample.dataset, sample.relation) for sample in samples],
        stop_ids=stop_token_ids(model, encoder.end_of_turn),
        tokenizer=tokenizer,
        pad_id=pad_id_of(tokenizer),
    )
    texts: list[str] = tokenizer.batch_decode(decoded, skip_special_tokens=True)
    return texts


def decode_prompts(
    model: Any,
    originals: Sequence[Sequence[int]],
    imagined: Sequence[Sequence[int]] | None = None,
    decoding: DecodingConfig = DecodingConfig(),
    *,
    alpha: Sequence[float] | None = None,
    groups: Sequence[Hashable] | None = None,
    on_batch: Callable[[list[int], list[list[int]]], object] = lambda indices, answers: None,
    stop_ids: Sequence[int] | None = None,
    tokenizer: Any = None,
    pad_id: int = 0,
) -> list[list[int]]:
    """Decode many prompts in batches of similar length; everything else as for `generate_debiased`.

    Args:
        groups: prompts of one group (a format, a dataset) begin alike and share their batches; None: all are one.
        on_batch: called after each batch with the indices of its prompts and their new tokens.

    Returns:
        the new token ids of each prompt, in the order given.

    Raises:
        UserError: as `generate_debiased`.
        ValueError: a list is of another length than `originals`.
    """
    results: list[list[int]] = [[] for _ in originals]
    check_counts(originals, imagined=imagined, alpha=alpha, groups=groups)
    for indices, prefix in batches_of(originals, imagined, groups, decoding.batch_size):
        answers = generate_debiased(
            model,
            [originals[i] for i in indices],
            None if imagined is None else [imagined[i] for i in indices],
            decoding,
            alpha=None if alpha is None else [alpha[i] for i in indices],
            stop_ids=stop_ids,
            tokenizer=tokenizer,
            pad_id=pad_id,
            names=indices,
            prefix=prefix,
        )
        for i, answer in zip(indices, answers, strict=True):
            results[i] = answer
        on_batch(indices, answers)
    return results


def check_counts(prompts: Sequence[Any], **lists: Sequence[Any] | None) -> None:
    """Raise ValueError for a list that has not one entry a prompt: a prompt would be passed over, and nothing said."""
    for name, values in lists.items():
        if values is not None and len(values) != len(prompts):
            raise ValueError(f"{len(values)} values of {name} for {len(prompts)} prompts")


def batches_of(
    originals: Sequence[Sequence[int]],
    imagined: Sequence[Sequence[int]] | None,
    groups: Sequence[Hashable] | None,
    size: int,
) -> Iterator[tuple[list[int], Prefix]]:
    """The indices of the prompts that go through the model together, and what all prompts of their group begin with.

    The prefix is one object for all batches of a group, and keeps its keys and values once they are computed.
    """
    members_of: dict[Hashable, list[int]] = {}
    for i in range(len(originals)):
        members_of.setdefault(None if groups is None else groups[i], []).append(i)
    for members in members_of.values():
        # The longest first: if memory does not suffice, that shows at once.
        order = sorted(members, key=lambda i: len(originals[i]), reverse=True)
        prefix = _common_prefix([originals[i] for i in order], [imagined[i] for i in order] if imagined else [])
        for start in range(0, len(order), size):
            yield order[start : start + size], prefix


def _common_prefix(originals: Sequence[Sequence[int]], imagined: Sequence[Sequence[int]]) -> Prefix:
    sequences = [*originals, *imagined]
    length = common_length(sequences)
    return Prefix(sequences[0][:length] if length >= MIN_SHARED else ())
