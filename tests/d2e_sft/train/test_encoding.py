"""The length rule: what is cut, what is dropped, and what is refused."""

from __future__ import annotations

import pytest

from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.views import ViewEncoder
from d2e_sft.train.rows import encode_samples
from d2e_sft.util.errors import UserError
from tests.tiny import make_sample, make_samples, tiny_tokenizer


@pytest.fixture(scope="module")
def encoder() -> ViewEncoder:
    return ViewEncoder(tiny_tokenizer(), load_prompt_set("default"), ("original", "imagined", "refined"))


def test_overlong_samples_are_an_error_with_a_count_and_are_dropped_only_when_asked(encoder: ViewEncoder) -> None:
    samples = [*make_samples(3), make_sample(4, context="word " * 400)]
    longest = encoder.encode(samples[3]).longest
    with pytest.raises(UserError, match=rf"1 of 4 samples exceed data.max_length=500 .*the longest has {longest}"):
        encode_samples(samples, encoder, max_length=500)
    result = encode_samples(samples, encoder, max_length=500, overlong="drop")
    assert len(result.kept) == 3
    assert result.dropped == [samples[3]]


def test_a_truncated_context_leaves_question_and_answer_whole(encoder: ViewEncoder) -> None:
    sample = make_sample(4, context="first " + "word " * 400)
    result = encode_samples([make_sample(1), sample], encoder, max_length=500, overlong="truncate_context")
    assert not result.dropped
    assert result.truncated == [sample]
    cut = result.kept[1]
    whole = encoder.encode(sample)
    text = encoder.tokenizer.decode(cut.prompts["original"])
    assert "first word word" in text
    assert sample.question in text
    assert cut.answer == whole.answer
    assert 490 < cut.longest <= 500
    assert cut.prompts["imagined"] == whole.prompts["imagined"]


def test_a_context_without_blanks_is_cut_and_not_emptied_and_an_answer_stays_whole(encoder: ViewEncoder) -> None:
    sample = make_sample(4, context="雨" * 300)
    result = encode_samples([sample], encoder, max_length=500, overlong="truncate_context")
    assert encoder.tokenizer.decode(result.kept[0].prompts["original"]).count("雨") > 20
    with pytest.raises(UserError, match="even without context"):
        encode_samples([make_sample(1)], encoder, max_length=100, overlong="truncate_context")
