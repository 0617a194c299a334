"""Options of `d2e eval`: defaults, decoders and cut-offs, and results of other ones, which are not mixed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from d2e_sft.judge.options import EndpointOptions
from d2e_sft.util.errors import UserError
from eval.run.engines import in_process
from eval.run.fingerprint import check_fingerprint
from eval.run.options import EvalOptions, resolve_options, warn_of_idle_options
from tests.command import call, d2e, refusal_of
from tests.factories import evaluate, evaluation, predictions, scores_of

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
def test_auto_is_the_dtype_that_this_machine_computes_fast(
    monkeypatch: pytest.MonkeyPatch, fast: bool, dtype: str
) -> None:
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


def test_a_cut_off_is_recorded_where_it_is_given(world: Path, tmp_path: Path) -> None:
    assert evaluate(world, tmp_path / "cut", "--alpha", 0.5, "--plausibility", 0.1) == 0
    assert evaluate(world, tmp_path / "all", "--alpha", 0.5) == 0
    assert scores_of(tmp_path / "cut")["plausibility"] == 0.1
    assert "plausibility" not in scores_of(tmp_path / "all")


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
def test_results_of_another_decoding_are_not_mixed(
    world: Path, tmp_path: Path, first: str, other: str, said: str
) -> None:
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


BEFORE = {"model": "sha256:1", "view": "original", "alpha": 0.5, "max_new_tokens": 64, "subset": None}
FILE = Path("predictions.jsonl")


def test_everything_that_differs_is_named_by_its_option() -> None:
    now = {**BEFORE, "alpha": 0.7, "subset": "3 a group, seed 0", "prompt_set": "x" * 80}
    with pytest.raises(UserError) as refused:
        check_fingerprint(BEFORE, now, FILE)
    assert refused.value.message.splitlines() == [
        "predictions.jsonl: was decoded by another model or with other options",
        "  --alpha: 0.5 → 0.7",
        "  the subset (--max-samples): none → 3 a group, seed 0",
        f"  the prompt set: none → {'x' * 60}…",
    ]
    check_fingerprint(BEFORE, dict(BEFORE), FILE)


def test_the_pass_without_context_may_differ_in_view_and_alpha_but_not_in_the_model() -> None:
    without = {**BEFORE, "view": "imagined", "alpha": 0.0, "cut_to": 400}
    check_fingerprint(BEFORE, without, FILE, companion=True)
    with pytest.raises(UserError, match="the model: sha256:1 → sha256:2"):
        check_fingerprint(BEFORE, {**without, "model": "sha256:2"}, FILE, companion=True)
