"""A prompt's answer does not depend on what is decoded beside it, nor on what is computed once for several."""

from __future__ import annotations

import re
import shutil
from typing import Any

import pytest
import torch

from d2e_sft.decoding import DecodingConfig, decode_prompts, generate_debiased, rows
from d2e_sft.decoding import cache as row_cache
from tests.d2e_sft.decoding.pairs import frequent_token, random_prompts
from tests.tiny import tiny_model

NEW_TOKENS = 12
PREFIX = list(range(10, 40))
KINDS = ["llama", "mistral-window", "gemma3", "gpt2"]


def _case(kind: str, count: int = 8) -> tuple[Any, list[list[int]], list[list[int]], list[int]]:
    """Pairs behind a common prefix, of very different lengths; two have the same imagined prompt."""
    model = tiny_model(kind, seed=1)
    originals = random_prompts(count, 5, 60, seed=3, prefix=PREFIX)
    imagined = random_prompts(count, 3, 9, seed=4, prefix=PREFIX)
    imagined[1] = list(imagined[4])
    return model, originals, imagined, [frequent_token(model, originals, imagined, NEW_TOKENS)]


def _alone(model: Any, originals: Any, imagined: Any, **options: Any) -> list[list[int]]:
    alphas = options.pop("alpha", [0.5] * len(originals))
    return [
        generate_debiased(model, [o], [i], DecodingConfig(alpha=alpha, max_new_tokens=NEW_TOKENS), **options)[0]
        for o, i, alpha in zip(originals, imagined, alphas, strict=True)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_pairs_that_finish_leave_the_batch_without_changing_the_others(kind: str) -> None:
    model, originals, imagined, stops = _case(kind)
    whole = generate_debiased(model, originals, imagined, DecodingConfig(max_new_tokens=NEW_TOKENS), stop_ids=stops)
    assert whole == _alone(model, originals, imagined, stop_ids=stops)
    assert len({len(answer) for answer in whole}) > 2, "the case needs pairs that finish at different steps"


@pytest.mark.parametrize("kind", KINDS)
def test_results_keep_the_order_of_the_prompts_whatever_the_batch_size_and_order(kind: str) -> None:
    model, originals, imagined, stops = _case(kind)
    seen: list[int] = []
    options: dict[str, Any] = {"decoding": DecodingConfig(max_new_tokens=NEW_TOKENS, batch_size=3), "stop_ids": stops}
    one, five = (DecodingConfig(max_new_tokens=NEW_TOKENS, batch_size=size) for size in (1, 5))
    by_one = decode_prompts(model, originals, imagined, one, stop_ids=stops)
    by_three = decode_prompts(model, originals, imagined, on_batch=lambda indices, _: seen.extend(indices), **options)
    backwards = decode_prompts(model, originals[::-1], imagined[::-1], five, stop_ids=stops)[::-1]
    grouped = decode_prompts(model, originals, imagined, groups=[i % 2 for i in range(8)], **options)
    assert by_one == by_three == backwards == grouped == _alone(model, originals, imagined, stop_ids=stops)
    assert sorted(seen) == list(range(8))


def test_each_request_has_its_alpha_and_those_without_context_no_imagined_row() -> None:
    model, originals, imagined, stops = _case("llama")
    imagined[2] = list(originals[2])  # no context to remove
    alphas = [0.0, 0.5, 0.9, 2.0, 0.0, 0.3, 1.0, 0.5]
    generate_debiased(model, originals[:1], decoding=DecodingConfig(alpha=0, max_new_tokens=1))
    rows: list[int] = []
    model.model.register_forward_pre_hook(
        lambda _, __, kwargs: rows.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    generate_debiased(model, originals, imagined, DecodingConfig(max_new_tokens=2), alpha=alphas, stop_ids=[])
    mixed = generate_debiased(
        model, originals, imagined, DecodingConfig(max_new_tokens=NEW_TOKENS), alpha=alphas, stop_ids=stops
    )
    assert rows[1] == 8 + 5  # of three pairs the α is 0 or the prompts are equal
    assert mixed == _alone(model, originals, imagined, alpha=alphas, stop_ids=stops)
    assert (
        mixed[2]
        == generate_debiased(
            model, [originals[2]], decoding=DecodingConfig(alpha=0, max_new_tokens=NEW_TOKENS), stop_ids=stops
        )[0]
    )


def test_the_common_prefix_goes_through_the_model_once_for_all_batches() -> None:
    model, originals, imagined, _ = _case("llama")
    generate_debiased(model, originals[:1], decoding=DecodingConfig(alpha=0, max_new_tokens=1))
    tokens: list[int] = []
    model.model.register_forward_pre_hook(
        lambda _, __, kwargs: tokens.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    decode_prompts(model, originals, imagined, DecodingConfig(batch_size=2, alpha=0.5, max_new_tokens=1))
    own = sum(len(prompt) - len(PREFIX) for prompt in [*originals, *imagined])
    assert tokens[0] == len(PREFIX)
    assert sum(tokens) == len(PREFIX) + own


def test_an_imagined_prompt_that_several_samples_have_is_computed_once_but_for_its_last_token() -> None:
    model, originals, _, _ = _case("llama")
    same = [[*PREFIX, *range(50, 90)]] * 8
    generate_debiased(model, originals[:1], decoding=DecodingConfig(alpha=0, max_new_tokens=1))
    tokens: list[int] = []
    model.model.register_forward_pre_hook(
        lambda _, __, kwargs: tokens.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    generate_debiased(model, originals, same, DecodingConfig(max_new_tokens=1))
    assert sum(tokens) == len(PREFIX) + sum(len(o) - len(PREFIX) for o in originals) + 39 + 8


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"imagined": [[5], [6], [7]]}, "3 values of imagined for 2 prompts"),
        ({"imagined": [[5]]}, "1 values of imagined for 2 prompts"),
        ({"alpha": [0.5]}, "1 values of alpha for 2 prompts"),
        ({"groups": ["qa"]}, "1 values of groups for 2 prompts"),
        ({"imagined": [[5], []]}, "imagined[1] has no token"),
        ({"originals": [[], [8, 9]]}, "originals[0] has no token"),
    ],
)
def test_what_does_not_fit_the_prompts_is_refused_by_name(options: dict[str, Any], said: str) -> None:
    """A list of groups that is too short would otherwise leave prompts without an answer, and say nothing."""
    given = {"originals": [[7, 8], [8, 9]], "imagined": [[7], [8]], **options}
    with pytest.raises(ValueError, match=re.escape(said)):
        decode_prompts(tiny_model(), **given, decoding=DecodingConfig(max_new_tokens=2))


@pytest.mark.parametrize("kind", ["llama", "mistral-window", "gemma3"])
def test_a_prefill_in_parts_gives_the_same_answers(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, originals, imagined, stops = _case(kind)
    options: dict[str, Any] = {"decoding": DecodingConfig(max_new_tokens=NEW_TOKENS), "stop_ids": stops}
    whole = decode_prompts(model, originals, imagined, **options)
    monkeypatch.setattr(rows, "PREFILL_TOKENS", 20)
    assert decode_prompts(model, originals, imagined, **options) == whole


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_dense_attention_of_rows_gives_what_the_cascade_gives(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, originals, imagined, stops = _case(kind)
    options: dict[str, Any] = {"decoding": DecodingConfig(max_new_tokens=NEW_TOKENS), "stop_ids": stops}
    cascade = generate_debiased(model, originals, imagined, **options)
    monkeypatch.setattr(row_cache, "_can_cascade", lambda *_: False)
    assert generate_debiased(model, originals, imagined, **options) == cascade


def test_the_models_attention_is_as_it_was_afterwards_even_if_decoding_fails() -> None:
    model, originals, imagined, _ = _case("llama")
    model.set_attn_implementation("eager")

    def breaks(index: int, token: int) -> None:
        raise RuntimeError("the reader left")

    with pytest.raises(RuntimeError, match="the reader left"):
        generate_debiased(model, originals, imagined, on_token=breaks)
    assert model.config._attn_implementation == "eager"


def test_bfloat16_weights_decode_without_leaving_bfloat16() -> None:
    model, originals, imagined, _ = _case("llama")
    model = model.to(torch.bfloat16)
    kinds: set[torch.dtype] = set()
    model.model.layers[0].register_forward_hook(lambda _, __, output: kinds.add(output.dtype))
    answers = generate_debiased(model, originals, imagined, DecodingConfig(max_new_tokens=4), stop_ids=[])
    assert kinds == {torch.bfloat16}
    assert [len(answer) for answer in answers] == [4] * 8


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor on CPU needs g++")
@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_a_compiled_step_over_static_rows_gives_the_same_answers(kind: str) -> None:
    """Compiled for the CPU here; on a GPU it has not been run."""
    model, originals, imagined, stops = _case(kind)
    options: dict[str, Any] = {"decoding": DecodingConfig(max_new_tokens=NEW_TOKENS), "stop_ids": stops}
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = generate_debiased(
        model, originals, imagined, DecodingConfig(max_new_tokens=NEW_TOKENS, compiled=True), stop_ids=stops
    )
    assert compiled == generate_debiased(model, originals, imagined, **options)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert not torch._dynamo.utils.counters["graph_break"]
