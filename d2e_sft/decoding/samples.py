"""Samples in, texts out: what a model answers, in the wording of training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import EventSample
from d2e_sft.data.views import ViewEncoder
from d2e_sft.decoding.generation import generate, stop_token_ids
from d2e_sft.decoding.pairs import PromptPair, TokenPair


def answer_samples(
    model: Any,
    tokenizer: Any,
    samples: Sequence[EventSample],
    decoding: DecodingConfig = DecodingConfig(),
    *,
    prompt_set: str = "default",
    max_length: int | None = None,
) -> list[str]:
    """Answer samples, decoded debiased; a sample without context is decoded plainly.

    Args:
        model: in eval mode.
        prompt_set: wording, by name or as a YAML file.
        max_length: longest prompt in tokens; the ends of longer contexts are cut off. None: no limit.

    Returns:
        one text per sample, in order.

    Raises:
        UserError: the model has no chat template.
    """
    wording, encoder_decoder = load_prompt_set(prompt_set), model.config.is_encoder_decoder
    views = ViewEncoder(tokenizer, wording, ("original", "imagined"), encoder_decoder=encoder_decoder)
    pairs, stop_ids = sample_pairs(views, samples, max_length), stop_token_ids(model, views.end_of_turn)
    decoded = generate(model, pairs, decoding, stop_ids=stop_ids, tokenizer=tokenizer)
    texts: list[str] = tokenizer.batch_decode(decoded, skip_special_tokens=True)
    return texts


def sample_pairs(
    encoder: ViewEncoder, samples: Sequence[EventSample], max_length: int | None = None
) -> list[TokenPair]:
    """Encode the prompts of samples; those of one format, dataset and relation are a group."""
    return [
        PromptPair(
            encoder.prompt_ids(sample, "original", max_length),
            encoder.prompt_ids(sample, "imagined"),
            group=(sample.format, sample.dataset, sample.relation),
            name=f"sample {sample.id!r} of {sample.dataset!r}",
        )
        for sample in samples
    ]
