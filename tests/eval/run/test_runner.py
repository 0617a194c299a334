"""`d2e eval` on a tiny model in this process: what is decoded, settings, and bad input."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.views import ViewEncoder
from d2e_sft.decoding import DecodingConfig, generate_debiased, stop_token_ids
from d2e_sft.model.loading import load_model
from tests.command import d2e
from tests.eval.benches import (
    QUICK,
    bench_row,
    bench_rows,
    evaluate,
    predictions,
    save_bench,
    save_suite,
    scores_of,
    without_the_clock,
)
from tests.tiny import save_tiny_model, tiny_tokenizer


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_predictions_are_what_the_decoder_says_in_file_order(world: Path, tmp_path: Path, alpha: float) -> None:
    assert evaluate(world, tmp_path, "--alpha", alpha) == 0
    loaded, samples = load_model(str(world / "model")), bench_rows()
    encoder = ViewEncoder(loaded.tokenizer, load_prompt_set("default"), ("original", "imagined"))
    answers = generate_debiased(
        loaded.model.eval(),
        [encoder.prompt_ids(sample, "original") for sample in samples],
        [encoder.prompt_ids(sample, "imagined") for sample in samples],
        DecodingConfig(alpha=alpha, max_new_tokens=6),
        stop_ids=stop_token_ids(loaded.model, encoder.end_of_turn),
    )
    expected = [loaded.tokenizer.decode(answer, skip_special_tokens=True) for answer in answers]
    rows = predictions(tmp_path)
    assert [row["id"] for row in rows] == [sample.id for sample in samples]
    assert [row["output"] for row in rows] == expected
    assert len(set(expected)) > 1
    assert not list((tmp_path / "eval" / "bench").glob("*.partial*")), "what is merged is removed"


def test_each_setting_has_results_of_its_own(world: Path, tmp_path: Path) -> None:
    for setting, folder in (("zero_shot", "bench"), ("few_shot", "bench-few_shot"), ("cot", "bench-cot")):
        assert evaluate(world, tmp_path, "--setting", setting) == 0
        scores = scores_of(tmp_path, folder)
        assert scores["setting"] == setting
        assert scores["bench"]["name"] == folder, "compare and report find it by this name"
        assert scores["engine"] == "transformers"
    assert d2e("compare", tmp_path, "--bench", "bench-few_shot") == 0
    shown = scores_of(tmp_path, "bench-few_shot")["demonstrations"]
    assert shown["file"] == str(world / "bench" / "train.parquet")
    assert [len(group["rows"]) for group in shown["groups"]] == [3, 3]
    assert scores_of(tmp_path)["demonstrations"] is None


def test_chain_of_thought_may_take_longer_by_default(world: Path, tmp_path: Path) -> None:
    common = ("eval", world / "model", "--bench", world / "bench", "--max-samples", 1)
    for setting in ("zero_shot", "cot"):
        assert d2e(*common, "--out", tmp_path / setting, "--setting", setting, "--overlong", "truncate_context") == 0
    assert scores_of(tmp_path / "zero_shot")["max_new_tokens"] == 64
    assert scores_of(tmp_path / "cot", "bench-cot")["max_new_tokens"] == 512


def test_a_suite_is_evaluated_by_its_name(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_suite(tmp_path / "data" / "ood", "ood", bench_rows(4), failures={"storycloze": "no file"})
    arguments = ("--suite", "ood", "--data", tmp_path / "data", "--out", tmp_path / "run")
    assert d2e("eval", world / "model", *arguments, *QUICK) == 0
    assert scores_of(tmp_path / "run", "ood")["bench"]["suite"] == "ood"
    assert scores_of(tmp_path / "run", "ood")["lacking"] == ["storycloze"]
    assert "is incomplete, it lacks storycloze" in capsys.readouterr().err


def test_empty_contexts_are_decoded_plainly_counted_and_said(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [bench_row(i, context=["", " \n"][i % 2] if i < 3 else f"It rained {i} days.") for i in range(6)]
    save_bench(tmp_path / "bench", rows)
    common = ("eval", world / "model", "--bench", tmp_path / "bench", *QUICK)
    assert d2e(*common, "--out", tmp_path / "debiased", "--alpha", 3) == 0
    printed = capsys.readouterr()
    assert "warning: 3 of 6 samples have no context and are decoded plainly" in printed.err
    assert "samples without a context: 3" in printed.out
    assert scores_of(tmp_path / "debiased")["empty_contexts"] == 3
    assert d2e(*common, "--out", tmp_path / "plain", "--alpha", 0) == 0
    assert "decoded plainly" not in capsys.readouterr().err
    debiased, plain = ([row["output"] for row in predictions(tmp_path / name)] for name in ("debiased", "plain"))
    assert debiased[:3] == plain[:3]
    assert debiased[3:] != plain[3:]


LONG = "The road was closed. " * 60


def test_contexts_beyond_the_model_are_an_error_or_cut(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [bench_row(i, context=LONG if i in (1, 4) else "It rained.") for i in range(6)]
    save_bench(tmp_path / "bench", rows)
    common = ("eval", world / "model", "--bench", tmp_path / "bench", "--out", tmp_path / "run", *QUICK)
    assert d2e(*common) == 1
    error = capsys.readouterr().err
    assert "2 of 6 samples exceed the model's context" in error
    assert "'s1' of 'made-up', has" in error, "the longest is named: nli has the longer wording"
    assert "--overlong truncate_context" in error
    assert not (tmp_path / "run").exists(), "a refused command leaves no folder behind"
    assert d2e(*common, "--overlong", "truncate_context") == 0
    assert scores_of(tmp_path / "run")["truncated"] == 2
    assert "contexts cut to fit the model: 2" in capsys.readouterr().out
    assert d2e(*common, "--overlong", "truncate_context") == 0
    assert scores_of(tmp_path / "run")["truncated"] == 2, "also when they are only scored again"


def test_a_prompt_that_is_too_long_without_its_context_cannot_be_cut(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_bench(tmp_path / "bench", [bench_row(0, question=LONG)])
    arguments = ("--bench", tmp_path / "bench", "--out", tmp_path / "run", "--overlong", "truncate_context")
    assert d2e("eval", world / "model", *arguments) == 1
    assert "exceed the model's context even without their contexts" in capsys.readouterr().err


def test_a_model_without_a_chat_template_is_refused(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_tiny_model(tmp_path / "model")
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    (tmp_path / "model" / "chat_template.jinja").unlink(missing_ok=True)
    tokenizer.save_pretrained(tmp_path / "model")
    assert d2e("eval", tmp_path / "model", "--bench", world / "bench") == 1
    error = capsys.readouterr().err
    assert "has no chat template" in error
    assert "-Instruct" in error


def test_an_encoder_decoder_is_evaluated_in_every_setting(world: Path, tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "t5", "t5")
    for setting in ("zero_shot", "few_shot", "cot"):
        arguments = ("--bench", world / "bench", "--setting", setting, "--alpha", 0.5)
        assert d2e("eval", tmp_path / "t5", *arguments, *QUICK) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--bench", "{bench}", "--base-url", "http://h/v1", "--alpha", "0.5"), "an endpoint decodes plainly"),
        (("--bench", "{bench}", "--base-url", "http://h/v1", "--overlong", "truncate_context"), "no context can be c"),
        (("--bench", "{bench}", "--setting", "few_shot", "--demonstrations", "nowhere"), "no such file or folder"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_calls_that_make_no_sense_are_refused_before_anything_is_loaded(
    world: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.setattr("d2e_sft.train.launch.accelerators", lambda: 0)
    filled = [argument.format(bench=world / "bench") for argument in arguments]
    assert d2e("eval", world / "model", "--out", tmp_path / "run", *filled) == 1
    error = capsys.readouterr().err
    assert said in error
    assert error.count("error:") == 1
    assert not (tmp_path / "run").exists()


def test_the_same_options_give_the_same_scores(world: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert evaluate(world, tmp_path / name, "--setting", "few_shot", "--alpha", 0.5) == 0
    one, two = (scores_of(tmp_path / name, "bench-few_shot") for name in ("one", "two"))
    assert without_the_clock(one) == without_the_clock(two)


def test_the_dtype_can_be_chosen(world: Path, tmp_path: Path) -> None:
    assert evaluate(world, tmp_path, "--dtype", "bfloat16") == 0
    assert scores_of(tmp_path)["environment"]["dtype"] == str(torch.bfloat16).removeprefix("torch.")


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor on CPU needs g++")
def test_a_compiled_step_gives_the_same_predictions(world: Path, tmp_path: Path) -> None:
    for name, options in (("one", ()), ("two", ("--compile",))):
        assert evaluate(world, tmp_path / name, "--alpha", 0.5, *options) == 0
    assert predictions(tmp_path / "one") == predictions(tmp_path / "two")
