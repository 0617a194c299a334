"""Debiased decoding inside vLLM gives the tokens of transformers' guidance."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: make test-vllm")

from d2e_sft.decoding import DecodingConfig, PromptPair, finished
from d2e_sft.util.errors import UserError
from d2e_sft.vllm.offline import answer_samples, generate, score
from tests.d2e_sft.decoding.pairs import generated, guided, scored
from tests.d2e_sft.vllm.reference import NEW_TOKENS, STOPS, Pairs, assert_equal
from tests.tiny import make_sample

ENGINE: dict[str, Any] = {"max_num_seqs": 64}
DECODING = DecodingConfig(max_new_tokens=NEW_TOKENS)
pytestmark = pytest.mark.timeout(1800)


def test_a_batch_of_100_mixed_requests_gives_the_references_tokens(llm: Any, in_process: Any, pairs: Pairs) -> None:
    outputs = finished(generate(llm, pairs.prompts, DECODING, stop_ids=STOPS))
    print(f"resubmissions: {sum(output.resubmissions for output in outputs)}")
    assert_equal(in_process.model, pairs, [output.tokens for output in outputs], range(100))


def test_transformers_own_guidance_gives_the_same_tokens(llm: Any, in_process: Any, pairs: Pairs) -> None:
    chosen = [pair for pair in pairs.prompts if pair.alpha and len(pair.original) < 200][:16]
    expected = [guided(in_process.model, pair, STOPS, NEW_TOKENS) for pair in chosen]
    assert [one.tokens for one in finished(generate(llm, chosen, DECODING, stop_ids=STOPS))] == expected


@pytest.mark.parametrize("decoder", ["cad:weight=2", "adacad:floor=0.3"])
def test_another_decoder_decodes_as_in_process(llm: Any, in_process: Any, pairs: Pairs, decoder: str) -> None:
    chosen = [replace(pair, alpha=None) for pair in pairs.prompts if len(pair.original) < 200][:8]
    decoding = replace(DECODING, decoder=decoder)
    expected = generated(in_process.model, chosen, decoding, stop_ids=STOPS)
    assert [one.tokens for one in finished(generate(llm, chosen, decoding, stop_ids=STOPS))] == expected


def test_samples_are_answered_with_text_and_one_without_context_plainly(llm: Any) -> None:
    samples = [make_sample(1), make_sample(2, context=""), make_sample(3)]
    debiased = answer_samples(llm, samples, DecodingConfig(alpha=0.5, max_new_tokens=8))
    plain = answer_samples(llm, samples, DecodingConfig(alpha=0.0, max_new_tokens=8))
    assert debiased[1] == plain[1]
    assert all(isinstance(text, str) and text for text in debiased)


def test_a_prompt_beyond_the_engines_length_is_refused_before_anything_is_decoded(llm: Any) -> None:
    with pytest.raises(UserError, match=r"has 800 tokens, plus 12 new ones; expected at most the engine's 768"):
        generate(llm, [PromptPair([5] * 800, [5]), PromptPair([5], [6])], DECODING, stop_ids=STOPS)


def test_options_that_would_touch_one_row_alone_are_refused_when_the_request_comes_in(llm: Any) -> None:
    from vllm import SamplingParams
    from vllm.exceptions import VLLMValidationError

    from d2e_sft.vllm.requests import probe_parameters

    extra = probe_parameters(3).extra_args
    for options in ({"temperature": 1.0}, {"presence_penalty": 1.0}, {"logprobs": 2}, {"stop_token_ids": []}):
        parameters = SamplingParams(**{"temperature": 0.0, "stop_token_ids": [3], "extra_args": extra, **options})
        with pytest.raises(VLLMValidationError, match=next(iter(options))):
            llm.generate({"prompt_token_ids": [5]}, parameters, use_tqdm=False)


def test_options_score_as_in_process(llm: Any, in_process: Any, pairs: Pairs) -> None:
    asked = [
        PromptPair(pair.original, options=[other.original[-5:], other.original[-9:-2], other.original[-1:]])
        for pair, other in zip(pairs.prompts[:6], pairs.prompts[6:12], strict=True)
    ]
    ours, expected = dict(score(llm, asked)).values(), scored(in_process.model, asked, DecodingConfig(alpha=0))
    for one, other in zip(chain(*ours), chain(*expected), strict=True):
        assert one.logprob == pytest.approx(other.logprob, rel=1e-3)
        assert one.tokens == other.tokens
