"""The points of a sweep and of `launch/paper.yaml`, what their commands cost, and what its folder accepts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from eval.compare.runs import probe_rows
from eval.sweep.cells import refuse_other_trainings, steps
from eval.sweep.costs import cost_of, paid_judge, sum_of
from eval.sweep.plan import Point, Sweep, data_folder, plan_sweep, split_values
from eval.sweep.run import refuse_other_sweep, save_record
from eval.sweep.spec import read_spec
from tests.command import output_of, refusal_of
from tests.eval.fake_sweeps import planned, write_sweep
from tests.tiny import make_sample

PROBED = """
build: --datasets habit habit.strength={strength} --seed {seed}
overrides: {train.seed: "{seed}", train.max_steps: 7}
axes:
  seed: [3, 4]
  strength: [0.5, 0.95]
  data: {as-is: {}, swapped: {build: --swap 0.5}}
  way: {sft: {d2e.debias: false, d2e.distill: false}, d2e: {}}
probe: {reference: {way: sft, data: as-is}}
"""
NAMED = """
evaluations: {"": {}, -plain: {alpha: 0}}
runs:
  d2e: {train.seed: 3}
  sft: {d2e.debias: false, evaluations: {"": {alpha: 0.7}, -cut: {plausibility: 0.1}}}
  base: {train: false, evaluations: {-ada: {decoder: adacad}, -d2e: {decoder: d2e, alpha: 0.2}}}
"""


def test_a_comma_in_brackets_or_quotes_belongs_to_a_value() -> None:
    assert split_values("", "0.1, 0.5,1e-1") == ["0.1", "0.5", "1e-1"]
    assert split_values("", "[q_proj,v_proj],all-linear,'a,b'") == ["[q_proj,v_proj]", "all-linear", "'a,b'"]
    assert split_values("", "{r: 4, alpha: 8},null") == ["{r: 4, alpha: 8}", "null"]


def test_keys_with_several_values_span_a_grid_and_one_value_holds_for_all(tmp_path: Path) -> None:
    found = planned(tmp_path, "d2e.alpha=0.1,0.5", "d2e.distill=true,false", "train.seed=2").points
    assert {point.name: (point.recipe.d2e.alpha, point.recipe.d2e.distill) for point in found} == {
        "alpha=0.1,distill=true": (0.1, True),
        "alpha=0.1,distill=false": (0.1, False),
        "alpha=0.5,distill=true": (0.5, True),
        "alpha=0.5,distill=false": (0.5, False),
    }
    assert {point.recipe.train.seed for point in found} == {2}
    assert found[0].recipe.train.output_dir == str(tmp_path / "out" / "alpha=0.1,distill=true")
    assert found[0].overrides == ["train.seed=2", "d2e.alpha=0.1", "d2e.distill=true"]


def test_names_are_folder_names_and_differ(tmp_path: Path) -> None:
    found = planned(tmp_path, "model.name=a/b,../c", "train.seed=0,1").points
    assert len({point.name for point in found}) == 4
    assert all("/" not in point.name for point in found)
    both = planned(tmp_path, "eval.alpha=0,1", "d2e.alpha=0.1,0.2").points
    assert both[0].name == "eval.alpha=0,d2e.alpha=0.1"


def trainings(points: list[Point]) -> int:
    return len({point.trained_in for point in points})


def test_values_without_effect_make_no_second_training(tmp_path: Path) -> None:
    found = planned(tmp_path, "d2e.alpha=0,0.5,1.0", "d2e.debias=true,false").points
    first = "alpha=0,debias=true"  # without debiasing α is 0
    assert [point.scored_in for point in found] == [
        first, first, "alpha=0.5,debias=true", first, "alpha=1.0,debias=true", first
    ]  # fmt: skip
    assert trainings(planned(tmp_path, "d2e.kl_weight=0.5,1", "d2e.distill=true,false").points) == 3
    own = ("d2e.objective=sft,d2e", "d2e.kl_weight=0", "d2e.alpha=0", "d2e.prefer_beta=1,2")
    assert trainings(planned(tmp_path, *own).points) == 1
    plain = ("d2e.debias=false", "d2e.distill=false")
    assert trainings(planned(tmp_path, "d2e.view_gradients=all,original", *plain).points) == 1
    assert trainings(planned(tmp_path, "d2e.view_gradients=all,original").points) == 2


def test_other_ratios_of_decoding_score_one_model_several_times(tmp_path: Path) -> None:
    found = planned(tmp_path, "eval.alpha=0,0.5,null,1", "d2e.alpha=0.5").points
    assert {point.trained_in for point in found} == {found[0].name}
    assert [point.scored_in for point in found] == [found[0].name, found[1].name, found[1].name, found[3].name]


def test_named_runs_are_scored_by_the_sweep_s_evaluations_and_their_own(tmp_path: Path) -> None:
    sweep = planned(tmp_path, "train.seed=1", "train.max_steps=2", text=NAMED)
    assert {p.name: (p.trained_in, p.decoding.alpha, p.decoding.plausibility) for p in sweep.points} == {
        "d2e": ("d2e", 0.5, 0.0), "d2e-plain": ("d2e", 0.0, 0.0),
        "sft": ("sft", 0.7, 0.0), "sft-plain": ("sft", 0.0, 0.0), "sft-cut": ("sft", 0.0, 0.1),
        "base": ("base", 0.5, 0.0), "base-plain": ("base", 0.0, 0.0),
        "base-ada": ("base", 0.0, 0.0), "base-d2e": ("base", 0.2, 0.0),
    }  # fmt: skip
    assert sweep.points[-2].decoding.decoder == "adacad:floor=0"
    assert sweep.points[0].overrides == ["train.seed=3", "train.max_steps=2"]
    assert [point.recipe.train.seed for point in sweep.points[:3]] == [3, 3, 1]


def test_a_combination_has_a_value_of_each_axis_and_its_own_data(tmp_path: Path) -> None:
    points = {point.name: point for point in planned(tmp_path, text=PROBED).points}
    assert len(points) == 2 * 2 * 2 * 2
    one = points["4,0.95,swapped,d2e"]
    assert one.build == ("--datasets", "habit", "habit.strength=0.95", "--seed", "4", "--swap", "0.5")
    assert (one.recipe.train.seed, one.recipe.train.max_steps, one.recipe.d2e.debias) == (4, 7, True)
    data = data_folder(tmp_path / "out", one.build)
    assert one.recipe.data.train == str(data / "train.parquet")
    assert one.recipe.data.probe == str(data / "test.parquet")
    assert len({point.build for point in points.values()}) == 8


def test_builds_have_folders_of_their_own(tmp_path: Path) -> None:
    long = [data_folder(tmp_path, ["--datasets", "x" * 230, "--swap", share]).name for share in ("0.2", "0.5")]
    assert len({*long}) == 2
    assert all(len(name) == 200 for name in long)
    assert data_folder(tmp_path, ["--datasets", "a/b,c", "--seed", "3"]).name == "datasets-a-b-c---seed-3"
    text = "runs: {one: {build: '--datasets a/b'}, two: {build: '--datasets a,b'}}"
    with pytest.raises(UserError, match=r"is that of two builds, --datasets a/b and --datasets a,b"):
        planned(tmp_path, text=text)


@pytest.mark.parametrize("form", ["{} {}", "{}={}"])
def test_an_option_of_eval_may_be_written_in_both_ways(tmp_path: Path, form: str) -> None:
    def asked(option: str, value: str) -> tuple[str, list[str]]:
        sweep = planned(tmp_path, "d2e.alpha=0.5,1.0", eval_args=form.format(option, value))
        _, (_, words) = steps(sweep, sweep.points[0])
        return " ".join(words[4:]), words

    assert asked("--alpha", "0")[0] == "--alpha 0"
    assert asked("--decoder", "plain")[0] == "--decoder plain"
    assert asked("--setting", "few_shot")[0] == "--setting few_shot --alpha 0.5"


def test_results_of_another_recipe_are_refused(tmp_path: Path) -> None:
    text = PROBED.replace("seed: [3, 4]", "seed: [3]")
    sweep = planned(tmp_path, text=text, bench=None)
    point = sweep.points[0]
    values = sweep.axes_of(point)
    log = [{"step": 2, "eval_n": 3, "eval_alpha": 0.5, "eval_train_seconds": 3.0, "eval_train_cpu_seconds": 2.0}]
    log[0] |= {"eval_plain_aligned": 1.0, "eval_plain_conflict": 0.5}
    rows = probe_rows(log, point.recipe, values, {}, point.digest())
    (tmp_path / "elsewhere").mkdir()
    same = text.replace("train.max_steps: 7", "train.max_steps: 7, train.save_steps: 3")
    refuse_other_trainings(rows, planned(tmp_path / "elsewhere", text=same, bench=None))
    older = [{key: value for key, value in row.items() if key != "training"} for row in rows]
    for old, new in (("max_steps: 7", "max_steps: 8"), ("--datasets habit", "--datasets matres")):
        other = planned(tmp_path, text=text.replace(old, new), bench=None)
        refuse_other_trainings(older, other)
        with pytest.raises(UserError, match=r"rows of 3,0\.5,as-is,sft with another recipe, overrides or build"):
            refuse_other_trainings(rows, other)


def test_words_choose_values_of_axes(tmp_path: Path) -> None:
    sweep = planned(tmp_path, "way=d2e,sft", "seed=4", "data=as-is", "d2e.alpha=0.3", text=PROBED)
    assert sweep.chosen == {"4,0.5,as-is,sft", "4,0.5,as-is,d2e", "4,0.95,as-is,sft", "4,0.95,as-is,d2e"}
    assert {point.recipe.d2e.alpha for point in sweep.points} == {0.3}


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        (NAMED, "sfd", "'sfd': neither a run of the sweep nor an override. Did you mean 'sft'"),
        (PROBED, "wey=sft", "axis 'wey': unknown; expected one of seed, strength, data, way. Did you mean 'way'"),
        (PROBED, "way=sfd", "way=sfd: expected one of sft, d2e. Did you mean 'sft'"),
        ("runs: {a: {}, a-b: {}}\nevaluations: {'': {}, -b: {}}", "", "'a-b': is that of two points"),
        ("runs: {a/b: {}}", "", "the name 'a/b': cannot be a folder"),
        ("runs: {sft: {}}\ncomparisons: {main: [sfd]}", "", "main: no point 'sfd'. Did you mean 'sft'"),
        ("runs: {a: {overides: {}}}", "", "not a valid sweep.*overides: expected section.key"),
        ("runs: {a: {train.output_dir: x}}", "", "every training of a sweep has its own folder"),
        ("runs: {a: {evaluations: {'': {alpha: -1}}}}", "", "greater than or equal to 0"),
        ("runs: {a: {evaluations: {'': {decoder: cda}}}}", "", "Did you mean 'cad'?"),
        ("runs: {a: {evaluations: {'': {decoder: cad, alpha: 1}}}}", "", "alpha 1 with the decoder cad"),
        ("axes: {number: [3, 4]}\nprobe: {reference: {number: 3}}", "", "needs one named seed"),
        ("axes: {seed: [3, 4], way: [sft]}\nprobe: {reference: {way: sfd}}", "", "way=sfd: expected one of sft"),
        ("axes: {seed: [3, 4]}\nprobe: {reference: {}}", "", "reference: got {}"),
        ("axes: {seed: [3, 4]}\nrows: x.json", "", "not a valid sweep.*unknown key 'rows'.*results"),
        ("axis: {seed: [3, 4]}", "", "sweep.yaml.*unknown key 'axis'.*Did you mean 'axes'"),
        ("runs: {a: {evaluations: {'': {alfa: 1}}}}", "", "'alfa' of axes.run.a.evaluations.''.*Did you mean 'alpha'"),
        ("axes: {seed: [3, 4]", "", "sweep.yaml: not a YAML file"),
        ("bench: x", "", "sweep.yaml: a sweep without an axis.*`axes`"),
        ("overrides: {train.lerning_rate: 1}\nruns: {a: {}}", "", "sweep.yaml: unknown key 'train.lerning_rate'"),
        ("runs: {a: {}}", "train.lerning_rate=1", "recipe.yaml: unknown key 'train.lerning_rate'"),
    ],
)
def test_a_file_or_a_word_that_fits_nothing_is_refused(tmp_path: Path, text: str, words: str, said: str) -> None:
    with pytest.raises(UserError, match=f"(?s){said}"):
        planned(tmp_path, *words.split(), text=text)


OWN = """
build: --datasets habit --seed {seed} habit.strength=0.9
bench: "{build}"
axes: {seed: [3, 4]}
runs: {sft: {d2e.objective: sft}, d2e: {}}
"""
WRONG = {
    "comparisons: {main: ['sft,3', 'd2e,4']}": "main: sft,3 is scored on --datasets habit --seed 3",
    "reports: {page: {points: ['sft,*']}}": "page: sft,3 is scored on",
    "eval_args: --setting few": "--eval-args: Invalid value for '--setting'",
    "eval_args: --decoder cda": "Did you mean 'cad'?",
    "eval_args: --decoder cad --alpha 0.5": "--eval-args: alpha 0.5 with the decoder cad",
    "evaluations: {'': {suite: piperr}}": "Invalid value for '--suite': 'piperr'",
}
BUILDS = {
    "--datasets habitt": "build: unknown dataset 'habitt'",
    "--datasets habit habit.strenght=1": "build: unknown option 'habit.strenght'",
    "--datasets habit habit.strength=high": "build: option of habit: strength: got 'high'",
    "--datasets habit --swap 2": "build: Invalid value for '--swap'",
    "--datasets habit --refusal no": "build: --refusal 'no' without --unanswerable",
}


def test_what_would_fail_after_the_trainings_is_refused_before_them(tmp_path: Path) -> None:
    def said(text: str, *words: str) -> str:
        file = write_sweep(tmp_path, text)
        assert not (tmp_path / "out").exists()
        return " ".join(refusal_of("sweep", file, "--out", tmp_path / "out", "--dry-run", *words).split())

    for more, problem in WRONG.items():
        assert problem in said(OWN + more + "\n")
    for build, problem in BUILDS.items():
        assert problem in said(OWN.replace("--datasets habit --seed {seed} habit.strength=0.9", build))
    own = "runs: {a: {eval_args: --setting few}, b: {errors: --judge-model}}"
    (tmp_path / "test.jsonl").write_text('{"id": "1"}\n')
    assert "its rows lack dataset" in said(own, "a", "--bench", str(tmp_path))
    (tmp_path / "test.jsonl").write_text(make_sample(1, split="test").model_dump_json())
    assert "eval_args of a: Invalid value for '--setting'" in said(own, "a", "--bench", str(tmp_path))
    assert "errors of b: Option '--judge-model' requires" in said(own, "b", "--bench", str(tmp_path))
    (tmp_path / "empty").mkdir()
    assert "empty: holds neither test.parquet" in said("runs: {a: {}}", "--bench", str(tmp_path / "empty"))
    two = "runs: {a: {eval_args: --setting cot}, b: {}}\ncomparisons: {t: [a, b]}"
    assert f"t: a is scored on --bench {tmp_path} --setting cot; b on" in said(two, "--bench", str(tmp_path))
    points = plan_sweep(read_spec(write_sweep(tmp_path, OWN)), [], tmp_path / "out", "x").points
    assert all(point.scored_in == point.name for point in points)


def test_an_untrained_model_is_scored_on_each_build_s_rows(tmp_path: Path) -> None:
    sweep = planned(tmp_path, text=OWN.replace("d2e: {}", "base: {train: false}"), bench="{build}")
    assert sweep.scored_on == "each build's own test rows"
    base = {point.values["seed"]: point.scored_in for point in sweep.points if not point.train}
    assert len({*base.values()}) == 2


PLAN = str(Path(__file__).parents[3] / "launch/paper.yaml")
QWEN = "qwen1.5-7b"


def plan(*words: str, scale: str | None = None) -> Sweep:
    return plan_sweep(read_spec(PLAN, scale), words, None, "paper")


def test_the_plan_has_every_run_of_the_tables() -> None:
    found = plan()
    trained = {point.name for point in found.trainings}
    models = {QWEN, "llama-2-7b", "deepseek-7b"}
    assert {f"{method},{model}" for method in ("sft", "d2e", "no-distill", "no-debias") for model in models} <= trained
    ratios = {(point.values["model"], point.recipe.d2e.alpha) for point in found.trainings if len(point.name) > 3}
    assert {(model, a) for model in (QWEN, "llama-2-7b") for a in (0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1, 2, 5)} <= ratios
    assert [name for name in trained if name.startswith("self")] == [f"self-refined,{QWEN}"]
    assert len(trained) == 12 + 2 * 8 + 1
    for point in found.trainings:  # the paper's section 4.3
        train = point.recipe.train
        assert (train.learning_rate, train.batch_size, train.num_train_epochs, train.fp16) == (1e-5, 64, 3, True)
    assert found.spec.paper_tables["table-4"].points[0] == f"base,{QWEN}"
    assert len(found.spec.paper_tables["table-4"].points) == 9
    assert len(found.spec.paper_tables["table-10"].points) == 6
    assert len(found.spec.paper_tables["table-6"].points) == 16 + 3


def test_commands_are_listed_in_order_and_data_are_built_once() -> None:
    found, listed = plan(f"model={QWEN}"), list[list[str]]()
    for point in found.work:
        listed += [words for _, words in steps(found, point) if words not in listed]
    builds = [" ".join(words) for words in listed if words[0] == "data"]
    assert [re.findall(r"--suite (\S+)", words)[0] for words in builds] == ["piper", "ood", "piper-10k", "piper-10k"]
    assert "--judge-model gpt-4o --refine local --refine-model Qwen/Qwen1.5-7B-Chat" in builds[-1]
    d2e = next(n for n, words in enumerate(listed) if words[0] == "train" and "runs/paper-tables/d2e," in words[-5])
    train, piper, ood = (" ".join(words) for words in listed[d2e : d2e + 3])
    assert "--launch zero3 --processes 8" in train
    assert "--suite piper --data runs/paper-tables/data --launch ddp" in piper
    assert "--suite ood --data runs/paper-tables/data" in ood
    assert ood.endswith(f"--out runs/paper-tables/d2e,{QWEN}-ood --alpha 0.5")


def test_the_plan_of_frozen_models_has_the_29_rows_of_table_2() -> None:
    found = plan_sweep(read_spec(PLAN.replace("paper.yaml", "paper-frozen.yaml")), (), None, "frozen")
    asked = {point.name: [" ".join(words) for _, words in steps(found, point)] for point in found.work}
    assert len(asked) == 29
    rows = [next(words for words in commands if words.startswith("eval ")) for commands in asked.values()]
    assert [sum(f"--setting {name}" in row for row in rows) for name in ("few_shot", "zero_shot", "cot")] == [9, 9, 11]
    assert sorted(row.split()[1] for row in rows if "--max-new-tokens 4096" in row) == [
        "Qwen/QwQ-32B-Preview", "deepseek-ai/DeepSeek-R1"
    ]  # fmt: skip
    sorted_errors = {name for name, commands in asked.items() if commands[-1].startswith("errors ")}
    models = (QWEN, "qwen1.5-14b", "llama-2-7b", "llama-2-13b", "deepseek-7b")
    assert sorted_errors == {f"frozen,{model},cot" for model in models}
    few = next(row for row in rows if "--setting few_shot" in row)
    assert "--form paper --demonstrations runs/paper-frozen/data/suite-piper-10k" in few


def test_a_scale_is_the_same_plan_with_another_model(tmp_path: Path) -> None:
    small, whole = plan(scale="smollm2-135m"), plan()
    assert {point.values["run"] for point in small.points} == {point.values["run"] for point in whole.points}
    assert len(small.trainings) == 4 + 8 + 1
    assert {point.recipe.model.name for point in small.points} == {"builtin:smollm2-135m-instruct"}
    assert small.spec.paper_tables.keys() == whole.spec.paper_tables.keys()
    out = tmp_path / "out"
    printed = output_of("sweep", PLAN, "sft", "--scale", "smollm2-135m", "--out", out, "--dry-run")
    assert "left: 1 trainings and 1 evaluations" in printed
    assert "--size 64" in printed
    assert re.search(r"\nin all [\d.]+ M tokens, .* on 1 × CPU core", printed)
    file = tmp_path / "sweep.yaml"
    file.write_text("recipe: smollm2-135m-mini/d2e\nruns: {a: {}}\nscales: {small: [1]}\n")
    assert "scales: got ['1']; expected keys of a sweep" in refusal_of("sweep", file, "--scale", "small", "--dry-run")
    assert "has no scales" in refusal_of("sweep", "smollm2-135m-mini/d2e", "--scale", "small")
    assert "Did you mean 'smollm2-135m'?" in refusal_of("sweep", PLAN, "--scale", "smollm2", "--dry-run")


def test_a_name_with_a_star_stands_for_points_of_one_evaluation(tmp_path: Path) -> None:
    text = (
        "runs: {a: {evaluations: {-x: {alpha: 0}}}, b: {not_with: {train.seed: ['1']}}}\naxes: {train.seed: [0, 1]}\n"
    )
    (tmp_path / "recipe.yaml").write_text("model: {name: m}\ndata: {train: t}\ntrain: {output_dir: o}\n")
    file = tmp_path / "sweep.yaml"

    def tables(points: str) -> list[str]:
        file.write_text(f"recipe: {tmp_path}/recipe.yaml\n{text}comparisons: {{t: [{points}]}}\n")
        return plan_sweep(read_spec(str(file)), [], tmp_path / "out", "x").spec.comparisons["t"]

    assert tables("'*'") == ["a,seed=0", "a,seed=1", "b,seed=0"]
    assert tables("'a,*-x', '*'") == ["a,seed=0-x", "a,seed=1-x", "a,seed=0", "a,seed=1", "b,seed=0"]
    with pytest.raises(UserError, match=r"t: no point 'c,\*'"):
        tables("'c,*'")


RUNS = "runs: {a: {train.learning_rate: 1e-5}}"


def test_points_may_be_added_and_what_was_begun_may_not_change(tmp_path: Path) -> None:
    other = tmp_path / "out" / "mine.txt"
    other.parent.mkdir()
    other.touch()
    with pytest.raises(UserError, match="is not empty and no sweep"):
        refuse_other_sweep(planned(tmp_path, text=RUNS))
    other.unlink()
    save_record(planned(tmp_path, text=RUNS))
    for text in (RUNS, "runs: {b: {}}", "runs: {a: {train.learning_rate: 1e-5, train.save_steps: 5}}"):
        refuse_other_sweep(planned(tmp_path, text=text))
    with pytest.raises(UserError, match=r"another sweep\n  a: train\.learning_rate: 1e-05 → 2e-05"):
        refuse_other_sweep(planned(tmp_path, text=RUNS.replace("1e-5", "2e-5")))
    bench = tmp_path / "test.jsonl"
    bench.write_text(make_sample(1, split="test").model_dump_json())
    call = ("sweep", tmp_path / "sweep.yaml", "--out", tmp_path / "out", "--bench", bench, "--dry-run")
    assert "was begun with another sweep" in refusal_of(*call), "a dry run is refused like the real one"


def test_what_is_scored_may_change_until_something_is(tmp_path: Path) -> None:
    first = planned(tmp_path, text=RUNS)
    save_record(first)
    others = {
        f"benchmark: '--bench {tmp_path}/mini' → '--bench other'": planned(tmp_path, text=RUNS, bench="other"),
        "--eval-args: '' → '--setting cot'": planned(tmp_path, text=RUNS, eval_args="--setting cot"),
        "evaluation.alpha: None → 0.7": planned(tmp_path, text=f"{RUNS}\nevaluations: {{'': {{alpha: 0.7}}}}"),
    }
    for other in others.values():
        refuse_other_sweep(other)
    (first.out / "a/eval/mini").mkdir(parents=True)
    (first.out / "a/eval/mini/scores.json").touch()
    for said, other in others.items():
        with pytest.raises(UserError) as error:
            refuse_other_sweep(other)
        assert said in str(error.value)
    (tmp_path / "train.jsonl").write_text("{} \n")
    with pytest.raises(UserError, match=r"SHA-256 of .*train\.jsonl"):
        refuse_other_sweep(first)


def test_a_build_that_asks_a_paid_judge_says_so_with_key_and_cost() -> None:
    build = ["data", "build", "--suite", "piper-10k", "--judge", "openai", "--judge-model", "gpt-4o"]
    said = str(paid_judge(plan(), build))
    for part in ("gpt-4o", "OPENAI_API_KEY", "USD"):
        assert part in said
    for other in (["--judge", "local"], ["--judge-url", "http://localhost"]):
        assert paid_judge(plan(), [*build, *other]) is None
    assert paid_judge(plan(), ["data", "build", "--suite", "piper"]) is None
    planned = output_of("sweep", PLAN, "--dry-run", f"model={QWEN}", "sft", "self-refined")
    assert (planned.count("OPENAI_API_KEY"), planned.count("USD")) == (2, 1)


def test_the_cost_of_a_training_is_six_operations_a_weight_and_token() -> None:
    found = plan()
    by_name = {point.name: point for point in found.points}
    sft, d2e = (cost_of(found, by_name[f"{name},llama-2-7b"], ["train"]) for name in ("sft", "d2e"))
    assert sft is not None
    assert d2e is not None
    assert sft.tokens == 3 * 10_000 * 236
    by_hand = 6 * 6.48e9 * sft.tokens / (8 * 312e12 * 0.031)  # LLaMA-2-7B without embeddings
    assert sft.seconds == pytest.approx(by_hand, rel=0.02)
    assert sft.seconds / 60 == pytest.approx(61, rel=0.05), "Table 8"
    assert d2e.seconds / 60 == pytest.approx(86, rel=0.06), "Table 8"
    assert sft.kept == pytest.approx(4 * 6.74e9, rel=0.01)
    assert sft.passing == pytest.approx(24 * 6.74e9, rel=0.01), "two checkpoints with Adam's moments"
    both = sum_of([sft, d2e])
    assert (both.tokens, both.kept, both.passing) == (sft.tokens + d2e.tokens, 2 * sft.kept, sft.passing)
    assert cost_of(found, by_name[f"base,{QWEN}"], ["data", "build"]) is None
