"""When an answer ends, and who hears of its tokens meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import TextStreamer

from d2e_sft.decoding import DecodingConfig, decode_prompts, generate_debiased, stop_token_ids
from d2e_sft.util.errors import UserError
from tests.d2e_sft.decoding.pairs import random_prompts
from tests.tiny import tiny_model, tiny_tokenizer

ORIGINALS, IMAGINED = random_prompts(5, 8, 40, seed=1), random_prompts(5, 3, 9, seed=2)


def _free(model: Any, count: int = 20) -> list[list[int]]:
    return generate_debiased(model, ORIGINALS, IMAGINED, DecodingConfig(max_new_tokens=count), stop_ids=[])


def test_a_stop_string_ends_the_answer_that_holds_it_and_no_other() -> None:
    model, tokenizer = tiny_model(seed=1), tiny_tokenizer()
    free = _free(model)
    stop = tokenizer.decode(free[2][4:6])
    stopped = generate_debiased(
        model,
        ORIGINALS,
        IMAGINED,
        DecodingConfig(max_new_tokens=20, stop_strings=[stop]),
        stop_ids=[],
        tokenizer=tokenizer,
    )
    assert stopped[2] == free[2][:6]
    for answer, whole in zip(stopped, free, strict=True):
        assert answer == whole[: len(answer)]
        assert (len(answer) < 20) == (stop in tokenizer.decode(whole)) or tokenizer.decode(whole).endswith(stop)


def test_without_stop_ids_those_of_the_generation_config_end_an_answer() -> None:
    model = tiny_model(seed=1)
    free = _free(model)
    model.generation_config.eos_token_id = [free[0][3]]
    assert generate_debiased(model, ORIGINALS, IMAGINED, DecodingConfig(max_new_tokens=20))[0] == free[0][:3]


def test_tokens_are_told_as_they_are_chosen() -> None:
    model = tiny_model(seed=1)
    heard: list[tuple[int, int]] = []
    stops = [_free(model)[0][3]]
    answers = generate_debiased(
        model,
        ORIGINALS,
        IMAGINED,
        DecodingConfig(max_new_tokens=20),
        stop_ids=stops,
        on_token=lambda index, token: heard.append((index, token)),
    )
    for i, answer in enumerate(answers):
        assert [token for index, token in heard if index == i] == answer
    assert [index for index, _ in heard[:4]] != [0, 0, 0, 0], "all pairs take a step before any takes the next"


def test_a_streamer_of_transformers_prints_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    model, tokenizer = tiny_model(seed=1), tiny_tokenizer()
    [answer] = generate_debiased(
        model,
        ORIGINALS[:1],
        IMAGINED[:1],
        DecodingConfig(max_new_tokens=9),
        stop_ids=[],
        streamer=TextStreamer(tokenizer),
    )
    assert capsys.readouterr().out == tokenizer.decode(answer) + "\n"
    with pytest.raises(ValueError, match="one prompt, got 5"):
        generate_debiased(model, ORIGINALS, IMAGINED, streamer=TextStreamer(tokenizer))


def test_stop_tokens_are_the_end_of_turn_and_the_models_own() -> None:
    model = tiny_model()
    model.generation_config.eos_token_id = [7, 1]
    assert stop_token_ids(model, end_of_turn=3) == [1, 3, 7]
    assert stop_token_ids(model) == [1, 7]


def test_no_prompt_gives_no_answer() -> None:
    assert generate_debiased(tiny_model(), [], [], DecodingConfig(alpha=0.5)) == []
    assert decode_prompts(tiny_model(), [], [], DecodingConfig(alpha=0.5)) == []


def test_stop_strings_need_a_tokenizer() -> None:
    with pytest.raises(UserError, match="stop_strings without a tokenizer"):
        generate_debiased(tiny_model(), [[5, 6, 7]], [[5, 7]], DecodingConfig(stop_strings=["\n"]))


def test_an_alpha_of_one_prompt_is_checked_like_that_of_all() -> None:
    with pytest.raises(UserError, match="alpha=inf: not a debias ratio"):
        generate_debiased(tiny_model(), [[5, 6, 7]], [[5, 7]], alpha=[float("inf")])
