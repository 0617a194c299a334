"""Debiased decoding inside vLLM gives the tokens of transformers' guidance."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: make test-vllm")

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.decoding import decode_prompts
from d2e_sft.decoding import score_options as score_in_process
from d2e_sft.util.errors import UserError
from d2e_sft.vllm.likelihood import score_options
from d2e_sft.vllm.offline import answer_samples, generate_debiased
from tests.d2e_sft.vllm.reference import NEW_TOKENS, STOPS, Pairs, assert_equal, guided
from tests.tiny import make_sample

ENGINE: dict[str, Any] = {"max_num_seqs": 64}
pytestmark = pytest.mark.timeout(1800)


def test_200_mixed_pairs_and_plain_requests_in_one_batch_give_the_tokens_of_the_reference(
    llm: Any, in_process: Any, pairs: Pairs
) -> None:
    finished: dict[int, list[int]] = {}
    resubmitted: list[int] = []
    answers = generate_debiased(
        llm,
        pairs.originals,
        pairs.imagined,
        DecodingConfig(max_new_tokens=NEW_TOKENS),
        alpha=pairs.alphas,
        stop_ids=STOPS,
        on_finished=finished.__setitem__,
        on_resubmission=resubmitted.append,
    )
    print(f"resubmissions: {len(resubmitted)}")
    assert_equal(in_process.model, pairs, answers, range(len(pairs.originals)))
    assert [finished[i] for i in range(len(pairs.originals))] == answers


def test_transformers_own_guidance_gives_the_same_tokens(llm: Any, in_process: Any, pairs: Pairs) -> None:
    chosen = [i for i in range(200) if pairs.alphas[i] > 0 and len(pairs.originals[i]) < 200][:16]
    answers = generate_debiased(
        llm,
        [pairs.originals[i] for i in chosen],
        [pairs.imagined[i] for i in chosen],
        DecodingConfig(max_new_tokens=NEW_TOKENS),
        alpha=[pairs.alphas[i] for i in chosen],
        stop_ids=STOPS,
    )
    expected = [guided(in_process.model, pairs.originals[i], pairs.imagined[i], pairs.alphas[i]) for i in chosen]
    assert answers == expected


@pytest.mark.parametrize("decoder", ["cad:weight=2", "adacad", "coiecd"])
def test_another_decoder_gives_the_tokens_of_decoding_in_process(
    llm: Any, in_process: Any, pairs: Pairs, decoder: str
) -> None:
    chosen = [i for i in range(200) if len(pairs.originals[i]) < 200][:8]
    originals, imagined = [pairs.originals[i] for i in chosen], [pairs.imagined[i] for i in chosen]
    decoding = DecodingConfig(decoder=decoder, max_new_tokens=NEW_TOKENS)
    expected = decode_prompts(in_process.model, originals, imagined, decoding, stop_ids=STOPS)
    assert generate_debiased(llm, originals, imagined, decoding, stop_ids=STOPS) == expected


def test_samples_are_answered_with_text_and_one_without_context_plainly(llm: Any) -> None:
    samples = [make_sample(1), make_sample(2, context=""), make_sample(3)]
    debiased = answer_samples(llm, samples, DecodingConfig(alpha=0.5, max_new_tokens=8))
    plain = answer_samples(llm, samples, DecodingConfig(alpha=0.0, max_new_tokens=8))
    assert debiased[1] == plain[1]
    assert all(isinstance(text, str) and text for text in debiased)


def test_a_prompt_beyond_the_engines_length_is_refused_before_anything_is_decoded(llm: Any) -> None:
    with pytest.raises(UserError, match=r"1 of 4 prompts exceed the engine's 768 positions \(the longest has 800"):
        generate_debiased(
            llm, [[5] * 800, [5]], [[5], [6]], DecodingConfig(alpha=0.5, max_new_tokens=4), stop_ids=STOPS
        )


def test_debiasing_without_imagined_prompts_is_refused(llm: Any) -> None:
    with pytest.raises(ValueError, match="needs one imagined prompt"):
        generate_debiased(llm, [[5, 6]], None, DecodingConfig(alpha=0.5, max_new_tokens=4), stop_ids=STOPS)


def test_options_that_would_touch_one_row_alone_are_refused_when_the_request_comes_in(llm: Any) -> None:
    from vllm import SamplingParams
    from vllm.exceptions import VLLMValidationError

    from d2e_sft.vllm.engine import probe_row

    extra = probe_row(3).as_extra_args()
    for options in ({"temperature": 1.0}, {"presence_penalty": 1.0}, {"logprobs": 2}, {"stop_token_ids": []}):
        parameters = SamplingParams(**{"temperature": 0.0, "stop_token_ids": [3], "extra_args": extra, **options})
        with pytest.raises(VLLMValidationError, match=next(iter(options))):
            llm.generate({"prompt_token_ids": [5]}, parameters, use_tqdm=False)


def test_options_score_as_in_process(llm: Any, in_process: Any, pairs: Pairs) -> None:
    prompts, others = pairs.originals[:6], pairs.originals[6:12]
    options = [[other[-5:], other[-9:-2], [other[-1]]] for other in others]
    ours = score_options(llm, prompts, options, given=[0] * len(prompts))
    expected = score_in_process(in_process.model, prompts, None, options, DecodingConfig(alpha=0))
    for of_prompt, here in zip(ours, expected, strict=True):
        assert [one.logprob for one in of_prompt] == pytest.approx([one.logprob for one in here], rel=1e-3)
        assert [one.tokens for one in of_prompt] == [one.tokens for one in here]
