"""Tasks of an evaluation: prompts that fit, and options chosen by likelihood."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import normalizers

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import EventSample
from d2e_sft.data.views import ViewEncoder
from d2e_sft.decoding.pairs import OptionScore
from d2e_sft.model.loading import load_model
from d2e_sft.util.errors import UserError
from eval.run.engines import in_process
from eval.run.task import Task, TaskItem, encode, sample_task
from tests.command import call, d2e, output_of, refusal_of
from tests.factories import QUICK, bench_row, bench_rows, predictions, save_bench, scores_of, train_rows
from tests.tiny import save_tiny_model, tiny_tokenizer

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


FOLDER = "bench-likelihood"


def choice_row(number: int, **changes: Any) -> EventSample:
    options = ["rain", "a long, long drought", "snow" * (number % 3 + 1)]
    fields: dict[str, Any] = {"format": "scq", "options": options, "answers": [options[number % 3]]}
    return bench_row(number, **{**fields, **changes})


ROWS = [
    *(choice_row(number) for number in range(5)),
    choice_row(5, format="mcq", answers=["rain", "a long, long drought"]),
    choice_row(6, context=""),
    *(bench_row(number) for number in (7, 9, 11)),  # nli
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, and a benchmark of all formats that have options."""
    folder = tmp_path_factory.mktemp("world")
    save_tiny_model(folder / "model", seed=3)
    trains = [
        *train_rows(),
        *(choice_row(i, id=f"c{i}", split="train", context=f"Hail on day {i}.") for i in range(8)),
    ]
    save_bench(
        folder / "bench",
        ROWS,
        [*trains, *(row.model_copy(update={"format": "mcq", "id": f"m{row.id}"}) for row in trains[-8:])],
    )
    return folder


def evaluation(world: Path, run: Path, *more: Any) -> list[Any]:
    common = ("--bench", world / "bench", "--out", run, "--batch-size", 3, "--answer", "likelihood")
    return ["eval", world / "model", *common, *more]


def logprob(
    model: Any, original: list[int], imagined: list[int], option: list[int], given: int, alpha: float
) -> float:
    """By a forward of the whole text for each view."""
    logits = [
        model.requires_grad_(False)(torch.tensor([[*prompt, *option]])).logits[0, len(prompt) - 1 : -1].double()
        for prompt in (original, imagined)
    ]
    debiased = logits[0] - (alpha if original != imagined else 0) * logits[1]
    return float(debiased.log_softmax(-1)[range(given, len(option)), option[given:]].sum())


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_predictions_hold_each_options_log_probability(world: Path, tmp_path: Path, alpha: float) -> None:
    output_of(*evaluation(world, tmp_path, "--alpha", alpha))
    rows = predictions(tmp_path, FOLDER)
    assert [row["id"] for row in rows] == [sample.id for sample in ROWS]
    texts = [[option["option"] for option in row["likelihoods"]] for row in rows]
    assert texts == [list(sample.candidates) for sample in ROWS]
    scores = scores_of(tmp_path, FOLDER)
    assert (scores["answer"], scores["normalise"], scores["max_new_tokens"]) == ("likelihood", "none", None)
    assert scores["overall"]["acc"]["mean"] == sum(row["acc"] for row in rows) / len(rows)
    loaded = load_model(str(world / "model"))
    encoder = ViewEncoder(loaded.tokenizer, load_prompt_set("default"), ("original", "imagined"))
    for sample, row in zip(ROWS, rows, strict=True):
        original, imagined = (encoder.prompt_ids(sample, view) for view in encoder.views)
        options, given = encoder.option_ids(sample)
        expected = [logprob(loaded.model.eval(), original, imagined, option, given, alpha) for option in options]
        assert [option["logprob"] for option in row["likelihoods"]] == pytest.approx(expected, rel=1e-5, abs=1e-5)
        assert row["answer"] == [sample.candidates[expected.index(max(expected))]]
        assert [option["tokens"] for option in row["likelihoods"]] == [len(option) - given for option in options]


def test_the_normalising_length_is_chosen_afterwards(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output_of(*evaluation(world, tmp_path))
    by_sum = predictions(tmp_path, FOLDER)
    monkeypatch.setattr(in_process, "score", lambda *_, **__: pytest.fail("asked again"))
    again = call(*evaluation(world, tmp_path, "--normalise", "characters"))
    assert "decoded before, and only scored again" in again.err
    by_length = predictions(tmp_path, FOLDER)
    assert [row["likelihoods"] for row in by_length] == [row["likelihoods"] for row in by_sum]
    assert [row["answer"] for row in by_length] != [row["answer"] for row in by_sum]
    assert scores_of(tmp_path, FOLDER)["normalise"] == "characters"


def test_few_shot_other_passes_and_encoder_decoders_score_options_too(world: Path, tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "t5", "t5")
    assert d2e("eval", model, "--bench", world / "bench", "--answer", "likelihood", "--alpha", 0.5) == 0
    output_of(*evaluation(world, tmp_path, "--setting", "few_shot", "--alpha", 0.5))
    assert scores_of(tmp_path, "bench-few_shot-likelihood")["demonstrations"] is not None
    output_of(*evaluation(world, tmp_path, "--alpha", 0.5))
    output_of(*evaluation(world, tmp_path, "--alpha", 0.5, "--without-context"))
    unread = predictions(tmp_path, FOLDER, "without_context")
    assert [row["likelihoods"] for row in unread] != [row["likelihoods"] for row in predictions(tmp_path, FOLDER)]


def test_rows_of_free_text_and_several_correct_options_are_counted(world: Path, tmp_path: Path) -> None:
    several = choice_row(9, format="mcq", answers=["rain", "a long, long drought"])
    save_bench(tmp_path / "bench", [*bench_rows(8), several])  # half of the eight are qa
    common = ("--bench", tmp_path / "bench", "--out", tmp_path, "--answer", "likelihood")
    printed = call("eval", world / "model", *common)
    assert "warning: 4 of 9 rows ask for free text (qa) and are left out" in printed.err
    assert "warning: 1 of 5 samples have several correct options (mcq)" in printed.err
    assert "rows without options left out: 4" in printed.out
    assert "acc " in printed.out
    scores = scores_of(tmp_path, FOLDER)
    assert (scores["without_options"], scores["overall"]["n"], scores["subset"]) == (4, 5, None)
