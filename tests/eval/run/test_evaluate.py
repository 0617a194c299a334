"""`d2e eval` on a tiny model in this process: what is decoded, settings, and bad input."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.views import ViewEncoder
from d2e_sft.decoding import DecodingConfig, generate_debiased, stop_token_ids
from d2e_sft.model.loading import load_model
from tests.command import call, d2e, output_of, refusal_of
from tests.factories import QUICK, bench_row, bench_rows, evaluate, predictions, save_bench, scores_of
from tests.tiny import overflowing_model, save_tiny_model, tiny_tokenizer


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


@pytest.mark.parametrize("name", ["chat", "generate", "zero_shot", "cot", "few_shot-cot"])
def test_a_benchmark_may_be_called_like_an_option(world: Path, tmp_path: Path, name: str) -> None:
    save_bench(tmp_path / name, bench_rows(2))
    for setting, folder in (("zero_shot", name), ("cot", f"{name}-cot")):
        bench = ("--bench", tmp_path / name, "--out", tmp_path / "run", "--setting", setting)
        assert d2e("eval", world / "model", *bench, *QUICK) == 0
        assert scores_of(tmp_path / "run", folder)["setting"] == setting
    assert sorted(path.name for path in (tmp_path / "run" / "eval").iterdir()) == [name, f"{name}-cot"]
    for verb in ("compare", "table", "report"):
        into = ("--out", tmp_path / "report.html") if verb == "report" else ()
        assert d2e(verb, tmp_path / "run", "--bench", name, *into) == 0


@pytest.mark.parametrize("suite", ["ood", "conflict"])
def test_a_suite_is_evaluated_by_its_name(world: Path, tmp_path: Path, suite: str) -> None:
    tags = {"relation": "factual", "subset": "conflict", "habit": ["rain"]} if suite == "conflict" else {}
    rows = [row.model_copy(update=tags) for row in bench_rows(4)]
    save_bench(tmp_path / "data" / suite, rows, manifest={"suite": suite, "failures": {"storycloze": "no file"}})
    arguments = ("--suite", suite, "--data", tmp_path / "data", "--out", tmp_path / "run")
    printed = call("eval", world / "model", *arguments, *QUICK)
    scores = scores_of(tmp_path / "run", suite)
    assert (scores["bench"]["suite"], scores["lacking"]) == (suite, ["storycloze"])
    assert scores["prompt_set_given"] == "default"
    assert scores["prompt_set"] == ("neutral" if suite == "conflict" else "default"), "facts are not worded as events"
    assert "is incomplete, without storycloze" in printed.err
    assert "layout of the paper" not in printed.out or suite == "ood", "the paper has no table for it"


def test_empty_contexts_are_decoded_plainly_counted_and_said(world: Path, tmp_path: Path) -> None:
    rows = [bench_row(i, context=["", " \n"][i % 2] if i < 3 else f"It rained {i} days.") for i in range(6)]
    save_bench(tmp_path / "bench", rows)
    common = ("eval", world / "model", "--bench", tmp_path / "bench", *QUICK)
    printed = call(*common, "--out", tmp_path / "debiased", "--alpha", 3)
    assert "warning: 3 of 6 samples have no context and are decoded plainly" in printed.err
    assert "samples without a context: 3" in printed.out
    assert scores_of(tmp_path / "debiased")["empty_contexts"] == 3
    assert "decoded plainly" not in call(*common, "--out", tmp_path / "plain", "--alpha", 0).err
    debiased, plain = ([row["output"] for row in predictions(tmp_path / name)] for name in ("debiased", "plain"))
    assert debiased[:3] == plain[:3]
    assert debiased[3:] != plain[3:]


def test_tagged_rows_have_measures_by_subset_and_untagged_ones_leave_no_trace_of_them(
    world: Path, tmp_path: Path
) -> None:
    assert evaluate(world, tmp_path / "plain") == 0
    assert "subsets" not in scores_of(tmp_path / "plain")
    assert not {"subset", "habit"} & set(predictions(tmp_path / "plain")[0])
    tags = [
        {"subset": ["aligned", "conflict"][i % 4 // 2], "habit": ["the sea"]} if i % 2 == 0 else {} for i in range(8)
    ]
    save_bench(tmp_path / "bench", [bench_row(i, **tag) for i, tag in enumerate(tags)])
    bench = ("--bench", tmp_path / "bench", "--out", tmp_path / "run")
    printed = " ".join(output_of("eval", world / "model", *bench, *QUICK).split())
    (own,) = scores_of(tmp_path / "run")["subsets"]
    assert {name: one["n"] for name, one in own["subsets"].items()} == {"aligned": 2, "conflict": 2}
    assert [p.get("subset") for p in predictions(tmp_path / "run")[:3]] == ["aligned", None, "conflict"]
    assert "4 untagged samples are left out" in printed
    assert "made-up gap" in printed


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
