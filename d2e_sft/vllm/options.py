"""Sampling options that do not fit a pair: vLLM would apply them to each row by itself, or to what it no longer is."""

from __future__ import annotations

from typing import Any

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


def refuse_options(parameters: Any, *, row: bool = False) -> None:
    """Raise ValueError where SamplingParams hold an option that does not fit a pair.

    Args:
        parameters: vLLM's SamplingParams.
        row: they are those of one request of the pair; else of the pair as a user asked for it.
    """
    for name, neutral in (_NEUTRAL | _NEUTRAL_ROW if row else _NEUTRAL).items():
        value = getattr(parameters, name, neutral)
        empty = neutral is None and (value is None or (hasattr(value, "__len__") and len(value) == 0))
        if not empty and value != neutral:
            raise ValueError(f"{name}={value!r}: cannot be used with debiased decoding; leave it at {neutral!r}")
