"""The model in this process: what it decodes, with which weights, and the models that it cannot have."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.views import ViewEncoder
from d2e_sft.decoding import DecodingConfig, generate_debiased, stop_token_ids
from d2e_sft.model.loading import load_model
from tests.command import d2e, refusal_of
from tests.factories import QUICK, bench_row, bench_rows, evaluate, predictions, save_bench
from tests.tiny import overflowing_model, save_tiny_model, tiny_tokenizer


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


def test_an_encoder_decoder_is_evaluated_in_every_setting(world: Path, tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "t5", "t5")
    for setting in ("zero_shot", "few_shot", "cot"):
        arguments = ("--bench", world / "bench", "--setting", setting, "--alpha", 0.5)
        assert d2e("eval", tmp_path / "t5", *arguments, *QUICK) == 0


@pytest.mark.parametrize("how", [QUICK, ("--answer", "likelihood")])
def test_an_overflow_in_float16_stops_the_evaluation_and_names_the_sample(
    tmp_path: Path, how: tuple[str | int, ...]
) -> None:
    overflowing_model().save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    save_bench(tmp_path / "bench", [bench_row(1), bench_row(3)])  # with options
    arguments = ("eval", tmp_path / "model", "--bench", tmp_path / "bench", "--out", tmp_path / "run", *how)
    error = refusal_of(*arguments, "--dtype", "float16")
    assert "sample 's" in error
    assert "in float16" in error.replace("\n   ", "")
    assert "bfloat16 or float32" in error.replace("\n     ", "")
    assert not list((tmp_path / "run").rglob("scores.json"))
    assert d2e(*arguments, "--overwrite") == 0
