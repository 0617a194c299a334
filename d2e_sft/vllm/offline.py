"""Debiased decoding of many prompts on a `vllm.LLM`."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from d2e_sft.config.decoding import merged_stop_ids
from d2e_sft.data.sample import EventSample
from d2e_sft.util.errors import UserError
from d2e_sft.vllm.draws import Draw
from d2e_sft.vllm.engine import check_engine, check_probe, model_folder, probe_row, require_vllm, unregistered_plugin
from d2e_sft.vllm.sentinel import choose_sentinel

require_vllm()

from vllm import LLM  # noqa: E402
from vllm.inputs.engine import tokens_input  # noqa: E402

from d2e_sft.vllm.batch import PairBatch  # noqa: E402
from d2e_sft.vllm.requests import PairRequest, plain_parameters  # noqa: E402


@dataclass(frozen=True)
class PairedDecoding:
    """What `decode_pairs` returns: new token ids a pair, without the stop token, and how often pairs were resubmitted.

    Attributes:
        answers: in the order of the prompts.
        resubmissions: submissions of pairs beyond the first of each.
    """

    answers: list[list[int]]
    resubmissions: int


def load_llm(
    model: str,
    *,
    dtype: str = "auto",
    tensor_parallel_size: int = 1,
    max_model_len: int | None = None,
    gpu_memory_utilization: float | None = None,
    **options: Any,
) -> LLM:
    """A vLLM engine that can decode pairs.

    Args:
        model: a run folder, another checkpoint, an adapter (merged into its base model in the cache), a Hub name or
            `builtin:…`.
        dtype: of the weights; `auto` is what the checkpoint holds.
        tensor_parallel_size: devices that share the model.
        max_model_len: longest prompt and answer, in tokens; None: the model's own.
        gpu_memory_utilization: share of the device's memory; None: vLLM's default.
        **options: vLLM's other engine options.

    Raises:
        UserError: no such model, or options that cannot decode pairs.
    """
    folder = model_folder(model)
    given: dict[str, Any] = {"gpu_memory_utilization": gpu_memory_utilization}
    given |= {"logits_processors": [*(options.pop("logits_processors", None) or []), *unregistered_plugin()] or None}
    given = {name: value for name, value in given.items() if value is not None}
    llm = LLM(
        model=folder,
        dtype=dtype,
        tensor_parallel_size=tensor_parallel_size,
        max_model_len=max_model_len,
        # Resubmitted pairs go first, while the cache still holds their prompts.
        scheduling_policy=options.pop("scheduling_policy", "priority"),
        **given,
        **options,
    )
    check_engine(llm.llm_engine.vllm_config)
    return llm


def decode_pairs(
    llm: LLM,
    originals: Sequence[Sequence[int]],
    imagined: Sequence[Sequence[int]] | None,
    *,
    alpha: float | Sequence[float],
    max_new_tokens: int,
    stop_ids: Sequence[int],
    on_finished: Callable[[int, list[int]], object] = lambda index, tokens: None,
    sentinel: int | None = None,
    plausibility: float = 0.0,
    draws: Sequence[Draw] | None = None,
) -> PairedDecoding:
    """Debiased decoding of many pairs at once (PIPER paper, section 3.3).

    Args:
        llm: an engine; prefix caching should be on, since resubmitted pairs read their prompts from the cache.
        originals: token ids of each original prompt.
        imagined: token ids of each prompt without context; needed unless every `alpha` is 0. A pair whose prompts are
            equal, or with α = 0, is one plain request.
        alpha: the debias ratio, of all pairs or of each.
        max_new_tokens: tokens at most, the stop token counted.
        stop_ids: tokens that end an answer; they are not part of the result.
        on_finished: called with index and new tokens as each answer is complete.
        sentinel: the token that ends a row that is alone; None: one that no answer holds.
        plausibility: see `PairedRow`.
        draws: how to sample each pair; None: greedy. Plain requests stay greedy.

    Returns:
        the new tokens of each prompt, in order, and the number of resubmissions.

    Raises:
        UserError: the engine cannot decode pairs, a prompt is too long for it, or it never computes some pair in one
            step.
        ValueError: a missing imagined prompt, or lists of different lengths.
    """
    ratios = _ratios(originals, imagined, alpha)
    paired = [i for i, ratio in enumerate(ratios) if ratio > 0]
    _check_lengths(llm, [*originals, *((imagined or [])[i] for i in paired)], max_new_tokens)
    if max_new_tokens < 1 or not originals:
        return PairedDecoding([[] for _ in originals], 0)
    chosen = -1
    if paired:
        check_engine(llm.llm_engine.vllm_config)
        chosen = _sentinel(llm, stop_ids) if sentinel is None else sentinel
        _probe(llm, chosen)
    assert imagined is not None or not paired
    requests = {
        i: PairRequest(
            original=originals[i],
            imagined=imagined[i],  # type: ignore[index]
            alpha=ratios[i],
            max_new_tokens=max_new_tokens,
            stops=tuple(stop_ids),
            sentinel=chosen,
            plausibility=plausibility,
            draw=None if draws is None else draws[i],
        )
        for i in paired
    }
    batch = PairBatch(llm, originals, requests, max_new_tokens, tuple(stop_ids), on_finished)
    return PairedDecoding(batch.run(), batch.resubmissions)


def generate_debiased(
    llm: LLM,
    samples: Sequence[EventSample],
    alpha: float | Sequence[float] = 0.5,
    *,
    prompt_set: str = "default",
    max_new_tokens: int = 64,
    sentinel: int | None = None,
) -> list[str]:
    """The text that the model answers to each sample, debiased.

    Args:
        llm: from `load_llm`.
        samples: event-reasoning samples; one without context is decoded plainly.
        alpha: the debias ratio, of all samples or of each.
        prompt_set: wording, by name or as a YAML file.
        max_new_tokens: longest answer, in tokens.

    Returns:
        one text a sample, in order.

    Raises:
        UserError: as for `decode_pairs`; or the model has no chat template.
    """
    from d2e_sft.data.prompts import load_prompt_set
    from d2e_sft.data.views import ViewEncoder

    tokenizer: Any = llm.get_tokenizer()
    encoder = ViewEncoder(tokenizer, load_prompt_set(prompt_set), ("original", "imagined"))
    decoded = decode_pairs(
        llm,
        [encoder.prompt_ids(sample, "original") for sample in samples],
        [encoder.prompt_ids(sample, "imagined") for sample in samples],
        alpha=alpha,
        max_new_tokens=max_new_tokens,
        stop_ids=stop_ids_of(llm, encoder.end_of_turn),
        sentinel=sentinel,
    )
    return [tokenizer.decode(answer, skip_special_tokens=True) for answer in decoded.answers]


def stop_ids_of(llm: LLM, end_of_turn: int) -> list[int]:
    """The end-of-turn token and whatever else the model's generation config stops at."""
    config = llm.llm_engine.vllm_config.model_config
    return merged_stop_ids(config.try_get_generation_config().get("eos_token_id"), end_of_turn)


def _ratios(
    originals: Sequence[Sequence[int]], imagined: Sequence[Sequence[int]] | None, alpha: float | Sequence[float]
) -> list[float]:
    """α of each pair, 0 where there is nothing to subtract."""
    from d2e_sft.vllm.pairing import check_ratio

    ratios = [float(alpha)] * len(originals) if isinstance(alpha, (int, float)) else [float(each) for each in alpha]
    for ratio in ratios:
        check_ratio("alpha", ratio)
    if len(ratios) != len(originals):
        raise ValueError(f"{len(ratios)} values of alpha for {len(originals)} prompts")
    if imagined is None:
        if any(ratios):
            raise ValueError(f"alpha={alpha} needs one imagined prompt for each of the {len(originals)} originals")
        return ratios
    if len(imagined) != len(originals):
        raise ValueError(f"{len(imagined)} imagined prompts for {len(originals)} originals")
    pairs = zip(originals, imagined, ratios, strict=True)
    return [0.0 if list(original) == list(other) else ratio for original, other, ratio in pairs]


def _check_lengths(llm: LLM, prompts: Sequence[Sequence[int]], new_tokens: int) -> None:
    limit = llm.llm_engine.vllm_config.model_config.max_model_len
    lengths = [len(prompt) for prompt in prompts]
    if lengths and min(lengths) == 0:
        raise UserError("an empty prompt; expected at least one token")
    over = [length for length in lengths if length + new_tokens > limit]
    if over:
        raise UserError(
            f"{len(over)} of {len(lengths)} prompts exceed the engine's {limit} positions (the longest has "
            f"{max(over)} tokens, plus {new_tokens} new ones)",
            remedy="raise max_model_len where the model allows it, lower max_new_tokens, or shorten the contexts",
        )


def _sentinel(llm: LLM, stop_ids: Sequence[int]) -> int:
    vocab = llm.llm_engine.vllm_config.model_config.get_vocab_size()
    return choose_sentinel(llm.get_tokenizer(), vocab, set(stop_ids))


def _probe(llm: LLM, sentinel: int) -> None:
    """One token, once an engine: does it run the plug-in?"""
    if getattr(llm, "_d2e_probed", False):
        return
    parameters = plain_parameters(1, [sentinel])
    parameters.extra_args = probe_row(sentinel).as_extra_args()
    name = f"d2e-probe-{uuid.uuid4().hex}"
    llm.llm_engine.add_request(name, tokens_input([0]), parameters)
    while True:
        for output in llm.llm_engine.step():
            if output.request_id == name and output.finished:
                check_probe(list(output.outputs[0].token_ids), sentinel)
                llm._d2e_probed = True
                return
