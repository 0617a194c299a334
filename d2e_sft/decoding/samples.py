"""Samples in, texts out: prompts by the same wording as in training, decoded debiased."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from d2e_sft.data.chat_template import pad_id
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import EventSample
from d2e_sft.data.views import ViewEncoder
from d2e_sft.decoding.batches import decode_prompts
from d2e_sft.decoding.generate import stop_token_ids


def answer_samples(
    model: Any,
    tokenizer: Any,
    samples: Sequence[EventSample],
    *,
    alpha: float | Sequence[float] = 0.5,
    prompt_set: str = "default",
    max_length: int | None = None,
    batch_size: int = 16,
    **options: Any,
) -> list[str]:
    """What the model answers to each sample.

    Args:
        model: a transformers model in eval mode.
        tokenizer: its own.
        samples: event-reasoning samples; one without context is decoded plainly.
        alpha: the debias ratio, of all samples or of each; 0 decodes plainly.
        prompt_set: wording, by name or as a YAML file.
        max_length: tokens of a prompt at most; the end of a longer context is cut off. None cuts nothing.
        **options: see `DecodingOptions`.

    Returns:
        one text a sample, in order.

    Raises:
        UserError: an option is out of range, or the model has no chat template.
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
        alpha=alpha,
        batch_size=batch_size,
        groups=[(sample.format, sample.dataset, sample.relation) for sample in samples],
        stop_ids=stop_token_ids(model, encoder.end_of_turn),
        pad_id=pad_id(tokenizer),
        **options,
    )
    texts: list[str] = tokenizer.batch_decode(decoded, skip_special_tokens=True)
    return texts
