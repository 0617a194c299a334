"""An evaluation and its options: what is decoded, written, cut, recorded and refused."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.views import ViewEncoder
from d2e_sft.decoding import DecodingConfig, generate_debiased, stop_token_ids
from d2e_sft.judge.options import EndpointOptions
from d2e_sft.model.loading import load_model
from eval.run.engines import in_process
from eval.run.options import EvalOptions, resolve_options, warn_of_idle_options
from tests.command import call, d2e, output_of, refusal_of
from tests.factories import (
    QUICK,
    bench_row,
    bench_rows,
    evaluate,
    evaluation,
    predictions,
    save_bench,
    scores_of,
    train_rows,
)
from tests.tiny import overflowing_model, save_tiny_model, tiny_tokenizer


@pytest.mark.parametrize("name", ["chat", "few_shot-cot"])
def test_each_setting_has_results_of_its_own_whatever_the_benchmark_is_called(
    world: Path, tmp_path: Path, name: str
) -> None:
    save_bench(tmp_path / name, bench_rows(2), train_rows())
    run, folders = tmp_path / "run", {"zero_shot": name, "few_shot": f"{name}-few_shot", "cot": f"{name}-cot"}
    for setting, folder in folders.items():
        bench = ("--bench", tmp_path / name, "--out", run, "--setting", setting)
        assert d2e("eval", world / "model", *bench, *QUICK) == 0
        scores = scores_of(run, folder)
        # compare and report find it by this name
        assert (scores["setting"], scores["bench"]["name"], scores["engine"]) == (setting, folder, "transformers")
        assert d2e("compare", run, "--bench", folder) == 0
    assert {path.name for path in (run / "eval").iterdir()} == {*folders.values()}
    assert d2e("report", run, "--bench", name, "--out", tmp_path / "report.html") == 0
    assert d2e("table", run, "--bench", name) == 1, "the paper's tables have no column for it"
    shown = scores_of(run, folders["few_shot"])["demonstrations"]
    assert shown["file"] == str(tmp_path / name / "train.parquet")
    assert [len(group["rows"]) for group in shown["groups"]] == [3, 3]
    assert scores_of(run, name)["demonstrations"] is None


def test_answers_of_an_edited_decoder_are_not_taken_for_its_own(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    file = tmp_path / "own_decoder.py"
    file.write_text("def half(original, imagined):\n    return original - 0.5 * imagined\n")
    arguments = ("--bench", world / "bench", "--out", tmp_path / "run", *QUICK, "--decoder", "own_decoder:half")
    assert d2e("eval", world / "model", *arguments) == 0
    assert "decoded before" in call("eval", world / "model", *arguments).err
    file.write_text(file.read_text().replace("0.5", "0.9"))
    assert "the file of the decoder" in refusal_of("eval", world / "model", *arguments)


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


def test_tagged_rows_alone_have_measures_by_subset(world: Path, tmp_path: Path) -> None:
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
def test_an_overflow_stops_the_evaluation_and_names_the_sample(tmp_path: Path, how: tuple[str | int, ...]) -> None:
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


ENDPOINT = EvalOptions(endpoint=EndpointOptions(base_url="http://127.0.0.1:9/v1"))


def test_a_model_without_a_recipe_is_decoded_plainly_in_process() -> None:
    config = resolve_options("no/recipe", EvalOptions())
    assert (config.engine, config.decoding.alpha, config.prompt_set) == ("transformers", 0.0, "default")
    assert config.decoding.max_new_tokens < resolve_options("m", EvalOptions(setting="cot")).decoding.max_new_tokens


def test_options_of_decoding_and_of_the_engine_reach_it() -> None:
    assert resolve_options("m", EvalOptions(compiled=True)).decoding.compiled
    assert resolve_options("m", ENDPOINT).engine == "openai"
    assert resolve_options("m", replace(ENDPOINT, engine="vllm")).engine == "vllm"


@pytest.mark.parametrize(("alpha", "given", "warned"), [(0.3, None, True), (0.3, 0.0, False), (0.0, None, False)])
def test_a_run_that_is_decoded_debiased_is_asked_plainly_at_an_endpoint_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], alpha: float, given: float | None, warned: bool
) -> None:
    data = "{train: r.parquet, prompt_set: mine, form: completion}"
    recipe = f"data: {data}\ntrain: {{output_dir: x}}\nd2e: {{alpha: {alpha}}}\n"
    (tmp_path / "recipe.yaml").write_text(recipe)
    config = resolve_options(str(tmp_path), replace(ENDPOINT, alpha=given))
    assert (config.decoding.alpha, config.prompt_set, config.form) == (0, "mine", "completion"), "as it was trained"
    warn_of_idle_options(str(tmp_path), config)
    told = "is otherwise decoded debiased with α = 0.3; an endpoint decodes plainly"
    assert (told in " ".join(capsys.readouterr().err.split())) == warned


def test_without_context_nothing_is_subtracted_or_cut_off() -> None:
    asked = EvalOptions(alpha=0.7, plausibility=0.1)
    read, not_read = resolve_options("m", asked), resolve_options("m", replace(asked, without_context=True))
    assert (read.decoding.alpha, read.decoding.plausibility) == (0.7, 0.1)
    assert (not_read.decoding.alpha, not_read.decoding.plausibility) == (0.0, 0.0)


@pytest.mark.parametrize(("fast", "dtype"), [(True, "bfloat16"), (False, "float32")])
def test_auto_is_the_dtype_that_is_fast_here(monkeypatch: pytest.MonkeyPatch, fast: bool, dtype: str) -> None:
    monkeypatch.setattr("d2e_sft.model.device.has_bfloat16", lambda: fast)
    assert resolve_options("m", EvalOptions(dtype="auto")).options.dtype == dtype
    assert resolve_options("m", EvalOptions(dtype="auto", engine="vllm")).options.dtype == "auto"
    assert resolve_options("m", EvalOptions()).options.dtype is None


def outputs(run: Path) -> list[str]:
    return [row["output"] for row in predictions(run)]


def test_the_cut_offs_ends_are_plain_and_debiased_decoding(world: Path, tmp_path: Path) -> None:
    asked: dict[str, tuple[object, ...]] = {
        "plain": ("--alpha", 0),
        "strictest": ("--alpha", 2, "--plausibility", 1),
        "loosest": ("--alpha", 2, "--plausibility", 1e-30),
        "debiased": ("--alpha", 2),
    }
    for name, arguments in asked.items():
        assert evaluate(world, tmp_path / name, *arguments) == 0
    said = {name: outputs(tmp_path / name) for name in asked}
    assert said["strictest"] == said["plain"]
    assert said["loosest"] == said["debiased"] != said["plain"]


def test_a_cut_off_that_cuts_nothing_is_said_and_not_recorded(world: Path, tmp_path: Path) -> None:
    warned = call(*evaluation(world, tmp_path, "--plausibility", 0.1))
    assert "warning: --plausibility has no effect where α is 0" in warned.err
    assert "plausibility" not in scores_of(tmp_path)
    assert evaluate(world, tmp_path, "--alpha", 0) == 0, "the same decoding"


@pytest.mark.parametrize(
    ("first", "other", "said"),
    [
        ("--alpha 0.5 --plausibility 0.1", "--alpha 0.5", "--plausibility: 0.1 → none"),
        ("--decoder adacad", "--decoder adacad:floor=0.1", "--decoder: adacad:floor=0 → adacad:floor=0.1"),
    ],
)
def test_results_of_other_decoding_stay_apart(world: Path, tmp_path: Path, first: str, other: str, said: str) -> None:
    assert evaluate(world, tmp_path, *first.split()) == 0
    assert said in refusal_of(*evaluation(world, tmp_path, *other.split()))
    assert evaluate(world, tmp_path, *first.replace("adacad", "adacad:floor=0").split()) == 0, "the same"
    assert evaluate(world, tmp_path, "--without-context") == 0


@pytest.mark.parametrize("answer", ["likelihood", "generate"])
def test_several_decoders_in_one_call_give_what_each_gives_alone(
    world: Path, tmp_path: Path, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[str] = []
    load = in_process.load_model
    monkeypatch.setattr(in_process, "load_model", lambda name, **how: loads.append(name) or load(name, **how))
    common = ("eval", world / "model", "--bench", world / "bench", "--answer", answer)
    names = ("plain", "cad:weight=0.5", "d2e:alpha=0.3")
    words = [word for name in names for word in ("--decoder", name)]
    assert d2e(*common, *words, "--out", tmp_path / "run") == 0
    assert len(loads) == 1
    folder = "bench-likelihood" if answer == "likelihood" else "bench"
    for name, run in zip(names, ("run-plain", "run-cad-weight-0.5", "run-d2e-alpha-0.3"), strict=True):
        assert d2e(*common, "--decoder", name, "--out", tmp_path / "alone" / run) == 0
        rows = [predictions(at / run, folder) for at in (tmp_path, tmp_path / "alone")]
        scored = [[option.pop("logprob") for row in of for option in row.get("likelihoods", ())] for of in rows]
        assert scored[0] == pytest.approx(scored[1], abs=1e-4)  # in a row that holds the other view too, sums differ
        assert rows[0] == rows[1]
        together, alone = (scores_of(at / run, folder) for at in (tmp_path, tmp_path / "alone"))
        differs = {key for key in {**together, **alone} if together.get(key) != alone.get(key)}
        assert differs <= {"seconds", "timed", "environment"}
