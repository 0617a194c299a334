"""Samples in, texts out: what a model answers, in the wording of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.data.chat_template import cut
from d2e_sft.data.prompts import PromptSet, load_prompt_set
from d2e_sft.data.rows import samples_of
from d2e_sft.data.sample import EventSample
from d2e_sft.data.views import ViewEncoder
from d2e_sft.decoding.generation import generate
from d2e_sft.decoding.pairs import PromptPair, TokenPair
from d2e_sft.decoding.stops import stop_token_ids
from d2e_sft.model.forward import expect_of_transformers
from d2e_sft.util.errors import UserError
from d2e_sft.util.progress import Progress


def answer_samples(
    model: Any,
    tokenizer: Any,
    samples: Sequence[EventSample] | Sequence[Mapping[str, Any]],
    decoding: DecodingConfig = DecodingConfig(),
    *,
    prompt_set: str | PromptSet = "default",
    max_length: int | None = None,
) -> list[str]:
    """Answer samples, decoded debiased; a sample without context is decoded plainly.

    Args:
        model: a causal or an encoder-decoder language model; answers in eval mode.
        samples: samples, or dicts with `question` and `context` or with `messages`; answers are not needed.
        prompt_set: wording, by name, as a YAML file, or from `load_prompt_set`, which also takes a form.
        max_length: longest prompt in tokens; the ends of longer contexts are cut off. None: no limit.

    Returns:
        one text per sample, in order.

    Raises:
        UserError: the model has no chat template, and the form needs one; or a row is not a sample, or an argument
            of another kind.
    """
    expect_of_transformers("model", model, "config")
    expect_of_transformers("tokenizer", tokenizer, "batch_decode")
    if not isinstance(decoding, DecodingConfig):
        raise UserError(f"decoding: got {decoding!r:.60}; expected a DecodingConfig", "give DecodingConfig(alpha=0.5)")
    if not isinstance(prompt_set, str | PromptSet):
        raise UserError(f"prompt_set: got {prompt_set!r:.60}; expected a name, or a set of load_prompt_set")
    if max_length is not None and max_length < 1:
        raise UserError(f"max_length: got {max_length}; expected at least 1, or None for no limit")
    if hasattr(samples, "__len__") and len(samples) == 0:
        return []
    asked = samples_of(samples, "samples", answered=False)
    wording = load_prompt_set(prompt_set) if isinstance(prompt_set, str) else prompt_set
    encoder_decoder = model.config.is_encoder_decoder
    decoding = replace(decoding, stop_strings=(*decoding.stop_strings, *wording.stops))
    views = ViewEncoder(tokenizer, wording, ("original", "imagined"), encoder_decoder=encoder_decoder)
    pairs, stop_ids = sample_pairs(views, asked, max_length), stop_token_ids(model, views.end_of_turn)
    with Progress(total=len(pairs), desc="answering", unit="sample") as bar:
        how = {"stop_ids": stop_ids, "tokenizer": tokenizer}
        decoded = generate(model, pairs, decoding, on_token=lambda _, token: bar.update(token is None), **how)
    return [cut(text, wording.stops) for text in tokenizer.batch_decode(decoded, skip_special_tokens=True)]


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
