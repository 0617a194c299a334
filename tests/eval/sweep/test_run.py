"""`d2e sweep` on a tiny model: what it writes, what it repeats, and what survives a kill and a failure."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from tests import command
from tests.command import after_step, call, output_of, refusal_of
from tests.factories import make_world, write_recipe
from tests.tiny import make_sample

AXES = ("d2e.debias=true,false", "d2e.alpha=0.5,1.0")
KILLED = "debias=true,alpha=1.0"
ROWS = [
    *(make_sample(i, split="test", dataset="ifqa", relation="counterfactual") for i in range(2)),
    *(make_sample(9 + i, split="test", dataset="tracie", format="nli", answers=["negative"]) for i in range(2)),
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, four test samples, and a recipe of four steps with two checkpoints."""
    folder = make_world(tmp_path_factory.mktemp("sweep"), bench=ROWS)
    write_recipe(folder, folder / "recipe", "train.save_steps=2", "eval.max_new_tokens=3")
    return folder


@pytest.fixture(autouse=True, scope="module")
def steps() -> Any:
    """Run steps in forked processes, which have the libraries loaded; `steps.kill` ends one by SIGKILL."""

    class Steps:
        kill: command.Kill | None = None

    def run(arguments: Sequence[str], output: IO[str], _: int, environment: Any) -> int:
        kill = Steps.kill if arguments[0] == "train" and KILLED in " ".join(arguments) else None
        return command.forked(arguments, output, environment, kill)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")  # sums over several threads may differ from run to run
        patch.setattr("eval.sweep.run.run_process", run)
        yield Steps


def sweep(world: Path, out: Path, *words: str | Path) -> list[str | Path]:
    return ["sweep", world / "recipe.yaml", *words, "--bench", world / "bench", "--out", out]


def results(out: Path) -> dict[str, dict[str, Any]]:
    return scored_rows(out / "results.json")


def scored_rows(file: Path) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in json.loads(file.read_text(encoding="utf-8"))["rows"] if "name" in row}


def logged(out: Path, verb: str) -> Counter[str]:
    """How often each point ran a command."""
    files = (out / "logs").glob(f"*.{verb}.log")
    return Counter({f.name.removesuffix(f".{verb}.log"): f.read_text().count(f"$ d2e {verb}") for f in files})


@pytest.fixture(scope="module")
def swept(world: Path, steps: Any) -> Path:
    """A sweep whose second training was killed, and which was called again."""
    out = world / "out"
    steps.kill = after_step(3)
    first = call(*sweep(world, out, *AXES))
    steps.kill = None
    assert first.status == 1
    assert f"{KILLED}: d2e train failed (killed by signal 9)" in first.err
    output_of(*sweep(world, out, *AXES))
    return out


def test_a_killed_training_resumes_and_ends_like_an_unkilled_one(world: Path, swept: Path, tmp_path: Path) -> None:
    assert logged(swept, "train") == {"debias=true,alpha=0.5": 1, KILLED: 2, "debias=false,alpha=0.5": 1}
    assert set(logged(swept, "eval").values()) == {1}
    log = (swept / "logs" / f"{KILLED}.train.log").read_text(encoding="utf-8")
    assert re.search(r"\$ d2e train .* --resume", log)
    override = ["d2e.debias=true", "d2e.alpha=1.0", f"train.output_dir={tmp_path / 'run'}"]
    assert command.train(tmp_path, [world / "recipe.yaml", *override]).status == 0
    ours, other = (load_file(run / "model.safetensors") for run in (swept / KILLED, tmp_path / "run"))
    assert all(torch.equal(ours[name], other[name]) for name in other)


def test_equal_points_are_trained_and_scored_once_and_shown_twice(swept: Path) -> None:
    rows = results(swept)
    assert len(rows) == 4
    assert rows["debias=false,alpha=1.0"]["status"] == "same as debias=false,alpha=0.5"
    assert rows["debias=false,alpha=1.0"]["scores"] == rows["debias=false,alpha=0.5"]["scores"]
    assert not (swept / "debias=false,alpha=1.0").exists()
    scores = json.loads((swept / KILLED / "eval" / "bench" / "scores.json").read_text())
    assert scores["alpha"] == 1.0
    assert rows[KILLED]["scores"]["f1"] == scores["overall"]["f1"]
    assert rows[KILLED]["n"] == 4


def test_page_and_paper_tables_are_in_the_folder(swept: Path) -> None:
    page = (swept / "results.html").read_text(encoding="utf-8")
    assert not re.search(r"""(?:src|href)\s*=\s*["']?(?!["'#])""", page), "the page needs no other file"
    assert "- w/o DEE" in (swept / "table-ablation.md").read_text(encoding="utf-8")
    assert "model (α=0.5)" in (swept / "table-sensitivity.md").read_text()
    said = "Decoded differently: decoding debiased with α = 0.5 (debias=true,alpha=0.5)"
    assert said in (swept / "results.md").read_text()
    assert said in page


def test_a_finished_sweep_repeats_nothing(world: Path, swept: Path) -> None:
    before = {file: file.stat().st_mtime_ns for file in swept.rglob("*.safetensors")}
    assert output_of(*sweep(world, swept, *AXES)).count("already done") == 3
    assert before == {file: file.stat().st_mtime_ns for file in swept.rglob("*.safetensors")}
    assert output_of(*sweep(world, swept, *AXES), "--dry-run").count(": done") == 3
    error = refusal_of(*sweep(world, swept, *AXES), "--strict")
    assert "α = 0.5 (debias=true,alpha=0.5)" in " ".join(error.split())


def test_a_point_that_fails_stops_only_those_that_wait_for_it(world: Path, tmp_path: Path) -> None:
    text = {
        "recipe": str(world / "recipe.yaml"),
        "runs": {"bad": {"train.learning_rate": 1e30}, "good": {"train.learning_rate": 1e-3}},
        "evaluations": {"": {}, "-plain": {"decoder": "plain"}},
    }
    file, out = tmp_path / "sweep.yaml", tmp_path / "out"
    file.write_text(yaml.safe_dump(text))
    words = ["sweep", file, "--bench", world / "bench", "--out", out]
    called = call(*words)
    assert called.status == 1
    assert "2 of 4 points failed\n  bad: d2e train failed (exit status 1)" in called.err
    assert "bad-plain: not tried, since bad failed" in called.err
    assert "the loss became" in called.out, "the end of the log says why"
    assert {name: row["status"] for name, row in results(out).items()} == {
        "bad": "failed", "bad-plain": "failed", "good": "scored", "good-plain": "scored"
    }  # fmt: skip
    assert call(*words).status == 1, "its last checkpoint does not make it a success"
    assert logged(out, "train") == {"bad": 2, "good": 1}
    assert logged(out, "eval") == {"good": 1, "good-plain": 1}


def test_an_evaluation_more_of_models_that_were_not_kept_is_refused(world: Path, tmp_path: Path) -> None:
    text = {"recipe": str(world / "recipe.yaml"), "runs": {"sft": {"d2e.objective": "sft"}}, "keep_models": False}
    file, out = tmp_path / "sweep.yaml", tmp_path / "out"
    file.write_text(yaml.safe_dump(text | {"keep_checkpoints": False}))
    words = ["sweep", file, "--bench", world / "bench", "--out", out]
    output_of(*words)
    before = sorted(out.rglob("*"))
    file.write_text(yaml.safe_dump(text | {"evaluations": {"": {}, "-d2e": {"alpha": 0.5}}}))
    said = " ".join(refusal_of(*words).split())
    assert "sft-d2e: not scored yet, and the model in" in said
    assert "was not kept (keep_models: false)" in said
    assert sorted(out.rglob("*")) == before
    file.write_text(yaml.safe_dump(text))
    assert "sft: already done" in output_of(*words)


def test_a_dry_run_lists_the_commands_and_writes_nothing(world: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    printed = output_of(*sweep(world, out, *AXES), "--dry-run")
    assert f"4 points in {out}, 0 done; left: 3 trainings and 3 evaluations" in printed
    assert f"\n  d2e eval {out}/{KILLED} --bench {world}/bench --alpha 1.0\n" in printed
    assert "debias=false,alpha=1.0: the same as debias=false,alpha=0.5" in printed
    assert not out.exists()


def named_runs(world: Path, folder: Path, **changes: Any) -> Path:
    content = {
        "recipe": str(world / "recipe.yaml"),
        "bench": str(world / "bench"),
        "out": str(folder / "out"),
        "eval_args": "--max-new-tokens 4",
        "evaluations": {"": {}, "-plain": {"alpha": 0}},
        "runs": {
            "base": {"train": False},
            "d2e": {
                "train.max_steps": 1,
                "evaluations": {"": {"without_context": True}, "-cut": {"plausibility": 0.2}},
            },
        },
        "comparisons": {"main": ["base-plain", "d2e", "d2e-plain"]},
        "paper_tables": {"paper": {"layout": "piper", "points": ["base", "d2e"]}},
        "reports": {"page": {"points": ["base", "d2e"], "no_texts": True, "title": "Mine"}},
        "keep_checkpoints": False,
    }
    file = folder / "sweep.yaml"
    file.write_text(yaml.safe_dump(content | changes, sort_keys=False))
    return file


def test_named_runs_are_trained_scored_and_made_tables_of(world: Path, tmp_path: Path) -> None:
    file, out = named_runs(world, tmp_path), tmp_path / "out"
    output_of("sweep", file, "base")
    names = ["base", "base-plain", "d2e", "d2e-plain", "d2e-cut"]
    status = {name: row["status"] for name, row in results(out).items()}
    assert status == dict(zip(names, ["scored"] * 2 + ["not scored"] * 3, strict=True))
    assert not (out / "main.md").exists(), "only the first of the compared points is scored"
    assert "base: already done" in output_of("sweep", file)
    assert logged(out, "train") == {"d2e": 1}
    assert logged(out, "eval") == dict.fromkeys(names, 1) | {"d2e": 2}
    assert logged(out, "errors") == {"d2e": 1}
    scores = {name: json.loads((out / name / "eval/bench/scores.json").read_text()) for name in names}
    assert {name: (one["alpha"], one.get("plausibility", 0.0)) for name, one in scores.items()} == {
        "base": (0.5, 0.0), "base-plain": (0.0, 0.0), "d2e": (0.5, 0.0), "d2e-plain": (0.0, 0.0), "d2e-cut": (0.5, 0.2)
    }  # fmt: skip
    assert (scores["base"]["model"], scores["d2e-plain"]["model"]) == (str(world / "model"), str(out / "d2e"))
    assert (out / "d2e" / "eval" / "bench" / "error_patterns.json").is_file()
    assert list(out.rglob("checkpoint-*")) == []
    assert "base-plain" in (out / "main.md").read_text()
    assert (out / "paper.tex").is_file()
    page = (out / "page.html").read_text()
    assert "<h1>Mine</h1>" in page
    assert not any(sample.question in page for sample in ROWS)


def test_a_model_that_scores_options_is_loaded_once_for_all_decoders(world: Path, tmp_path: Path) -> None:
    evaluations = {"": {}, "-cad": {"decoder": "cad:weight=2"}, "-ada": {"decoder": "adacad"}}
    runs, names = {"base": {"train": False}}, ["base", "base-cad", "base-ada"]
    changes = {"evaluations": evaluations, "runs": runs, "comparisons": {}, "paper_tables": {}, "reports": {}}
    file, out = named_runs(world, tmp_path, eval_args="--answer likelihood", **changes), tmp_path / "out"
    assert output_of("sweep", file, "--dry-run").count("  d2e eval ") == 1
    output_of("sweep", file)
    assert logged(out, "eval") == {"base": 1}
    assert {name: row["status"] for name, row in results(out).items()} == dict.fromkeys(names, "scored")
    scores = [json.loads((out / name / "eval/bench-likelihood/scores.json").read_text()) for name in names]
    assert [one.get("decoder", one["alpha"]) for one in scores] == [0.5, "cad:weight=2", "adacad:floor=0"]
    for name in names[1:]:
        shutil.rmtree(out / name)
    assert output_of("sweep", file, "--dry-run").count(" --out ") == 2, "what is scored is not scored again"


def probe(world: Path, folder: Path) -> Path:
    habit = "habit.things_per_story=2 habit.moves=1 habit.train_samples=8 habit.test_samples=4"
    content = {
        "recipe": str(world / "recipe.yaml"),
        "out": str(folder / "out"),
        "results": str(folder / "rows.json"),
        "build": f"--datasets habit --seed {{seed}} {habit}",
        "overrides": {
            "train.seed": "{seed}", "train.eval_steps": 1, "train.max_steps": 2, "train.learning_rate": 1e-3
        },
        "axes": {"seed": [0, 1], "objective": {"sft": {"d2e.objective": "sft"}, "d2e": {"d2e.objective": "d2e"}}},
        "probe": {"reference": {"objective": "sft"}},
        "keep_models": False,
    }  # fmt: skip
    file = folder / "probe.yaml"
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    return file


def test_a_probe_measures_each_training_once_and_compares_it(world: Path, tmp_path: Path) -> None:
    file, rows, out = probe(world, tmp_path), tmp_path / "rows.json", tmp_path / "out"
    printed = output_of("sweep", file, "seed=0", "--jobs", "2")
    assert "4 points in" in printed
    assert "left: 2 trainings and 0 evaluations" in printed
    found = json.loads(rows.read_text())["rows"]
    # Before the first step and after each of two; plain, debiased and without context.
    assert len(found) == 2 * 3 * 3
    assert {row["step"] for row in found} == {0, 1, 2}
    assert all(row["cpu_seconds"] > 0 for row in found if row["step"])
    assert len(list((out / "data").iterdir())) == 1, "both objectives share the data"
    assert not list(out.glob("*/*.safetensors")), "weights are deleted"
    assert "reference" in (out / "results.md").read_text()
    again = output_of("sweep", file, "seed=0", "objective=sft")
    assert "0,sft: already done" in again
    assert json.loads(rows.read_text())["rows"] == found
    assert "--results FILE" in refusal_of("sweep", file, "seed=0", "train.learning_rate=0.5")


def test_each_combination_is_scored_on_the_test_rows_of_its_own_data(world: Path, tmp_path: Path) -> None:
    file, out = probe(world, tmp_path), tmp_path / "out"
    said = refusal_of("sweep", world / "recipe.yaml", "d2e.alpha=1,2", "--bench", "{build}")
    assert "builds no data" in said
    output_of("sweep", file, "objective=sft", "--bench", "{build}")
    scored = {name: row["n"] for name, row in scored_rows(tmp_path / "rows.json").items() if row["status"] == "scored"}
    assert scored == {"0,sft": 8, "1,sft": 8}, "four stories of each subset"
    for seed in (0, 1):
        (bench,) = (out / f"{seed},sft" / "eval").iterdir()
        assert f"seed-{seed}" in bench.name
    assert "0,sft: already done" in output_of("sweep", file, "objective=sft"), "a call that scores nothing may follow"
