"""Tasks as token ids: which view is answered, what is subtracted, and prompts that exceed the model."""

import math
from pathlib import Path
from typing import Any

import pytest
from tokenizers import normalizers

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.decoding.pairs import OptionScore
from d2e_sft.util.errors import UserError
from eval.run.task import Task, TaskItem, encode, sample_task
from tests.command import output_of, refusal_of
from tests.factories import QUICK, bench_row, save_bench, scores_of
from tests.tiny import tiny_tokenizer

LONG = "The road was closed. " * 60
WORDING = load_prompt_set("default")


def turn(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def conversations(*texts: str, alpha: float = 0.5, **options: Any) -> Task:
    asked = [TaskItem("d", f"c{i}", turn(text), turn("Wet?"), group=text[:2]) for i, text in enumerate(texts)]
    return Task(conversations=asked, decoding=DecodingConfig(alpha=alpha, max_new_tokens=5), **options)


def of_contexts(*contexts: str, truncate: bool = False) -> Task:
    """Samples of one format, so that their wordings have the same length."""
    rows = [bench_row(2 * i, context=context) for i, context in enumerate(contexts)]
    return sample_task(rows, WORDING, DecodingConfig(alpha=0.5, max_new_tokens=6), truncate=truncate)


def test_the_imagined_prompts_are_encoded_only_if_they_are_subtracted() -> None:
    debiased, plain = (encode(conversations("It rained. Wet?", alpha=a), tiny_tokenizer())[0] for a in (0.5, 0.0))
    assert debiased[0].imagined is not None
    assert plain[0].imagined is None
    assert plain[0].original == debiased[0].original
    blind = conversations("It rained. Wet?", alpha=0.0, without_context=True)
    assert encode(blind, tiny_tokenizer())[0][0].original == debiased[0].imagined


def test_only_a_decoder_only_model_has_to_hold_the_answer_too() -> None:
    task = conversations("It rained. Wet?")
    length = len(encode(task, tiny_tokenizer())[0][0].original)
    encode(task, tiny_tokenizer(), limit=length + 5)
    encode(task, tiny_tokenizer(), encoder_decoder=True, limit=length)
    with pytest.raises(UserError, match=f"prompts may have {length - 1} tokens plus 5 new ones"):
        encode(task, tiny_tokenizer(), limit=length + 4)


def test_only_contexts_that_are_too_long_are_cut() -> None:
    contexts = ["It rained.", LONG, "It snowed."]
    whole, _ = encode(of_contexts(*contexts), tiny_tokenizer())
    limit = max(len(whole[0].original), len(whole[2].original)) + 10 + 6  # the answer takes six
    cut, _ = encode(of_contexts(*contexts, truncate=True), tiny_tokenizer(), limit=limit)
    assert [pair.truncated for pair in cut] == [False, True, False]
    assert all(len(pair.original) <= limit - 6 for pair in cut)
    assert [cut[i].original for i in (0, 2)] == [whole[i].original for i in (0, 2)]
    assert [pair.imagined for pair in cut] == [pair.imagined for pair in whole]


def test_options_need_a_token_of_their_own_and_room() -> None:
    task = sample_task([bench_row(1), bench_row(3)], WORDING, DecodingConfig(alpha=0.5), likelihood=True)
    pairs, _ = encode(task, tiny_tokenizer())
    for pair in pairs:
        scored = [tiny_tokenizer().decode(option[pair.given :]).strip() for option in pair.options]
        assert scored == ["positive", "negative"]
    room, budget = len("The answer is: positive"), max(len(pair.original) for pair in pairs)
    assert encode(task, tiny_tokenizer(), limit=budget + room)[0] == pairs
    with pytest.raises(UserError, match=f"1 of 2 prompts exceed .* {budget - 1} tokens plus {room} new ones"):
        encode(task, tiny_tokenizer(), limit=budget + room - 1)
    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("positive", "")
    with pytest.raises(UserError, match=r"sample 's1' of 'made-up': .* makes no token of option 'positive'"):
        encode(task, tokenizer)
    with pytest.raises(UserError, match="sample 's1' of 'made-up': the log-probability of option 'negative' is nan"):
        task.answer(0, [OptionScore(-1.0, 1), OptionScore(math.nan, 1)], truncated=False)


def test_contexts_beyond_the_model_are_an_error_or_cut(world: Path, tmp_path: Path) -> None:
    rows = [bench_row(i, context=LONG if i in (1, 4) else "It rained.") for i in range(6)]
    save_bench(tmp_path / "bench", rows)
    common = ("eval", world / "model", "--bench", tmp_path / "bench", "--out", tmp_path / "run", *QUICK)
    error = refusal_of(*common)
    assert "2 of 6 prompts exceed the model's context" in error
    assert "'s1' of 'made-up', has" in error, "the longest is named: nli has the longer wording"
    assert "--overlong truncate_context" in error
    assert not (tmp_path / "run").exists(), "a refused command leaves no folder behind"
    for _ in range(2):  # the second time it is only scored again
        assert "contexts cut to fit the model: 2" in output_of(*common, "--overlong", "truncate_context")
        assert scores_of(tmp_path / "run")["truncated"] == 2
    save_bench(tmp_path / "asked", [bench_row(0, question=LONG)])
    arguments = ("--bench", tmp_path / "asked", "--out", tmp_path / "other", "--overlong", "truncate_context")
    assert "exceed the model's context even without their contexts" in refusal_of("eval", world / "model", *arguments)


@pytest.mark.parametrize("tokens", [1_000_000_000, 1024])
def test_an_answer_may_not_be_longer_than_the_models_positions(world: Path, tmp_path: Path, tokens: int) -> None:
    said = refusal_of(
        "eval", world / "model", "--bench", world / "bench", "--out", tmp_path, "--max-new-tokens", tokens
    )
    assert f"--max-new-tokens {tokens:,}: the model has 1,024 positions for prompt and answer together" in said
