"""`d2e sweep` on a tiny model: what it leaves, what it repeats, and what survives a kill and a failure."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from d2e_sft import cli
from d2e_sft.data.sample import EventSample, write_samples
from tests.command import d2e
from tests.tiny import make_sample, make_samples, save_tiny_model

RECIPE = """
model: {{name: {world}/model}}
data: {{train: {world}/train.jsonl, max_length: 1000}}
train: {{output_dir: unused, num_train_epochs: 4, batch_size: 2, per_device_train_batch_size: 2,
       learning_rate: 3e-3, logging_steps: 1,
         save_steps: 2, save_total_limit: 100, bf16: false}}
eval: {{max_new_tokens: 3, batch_size: 8}}
"""
AXES = ("d2e.debias=true,false", "d2e.alpha=0.5,1.0")


def _test_samples() -> list[EventSample]:
    qa = [make_sample(i, split="test", dataset="ifqa", relation="counterfactual") for i in range(2)]
    labels = ("positive", "negative")
    nli = [make_sample(9 + i, split="test", dataset="tracie", format="nli", answers=[labels[i]]) for i in range(2)]
    return [*qa, *nli]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, 8 training and 4 test samples, and a recipe of 16 steps."""
    folder = tmp_path_factory.mktemp("sweep")
    save_tiny_model(folder / "model")
    write_samples(make_samples(8), folder / "train.jsonl")
    write_samples(_test_samples(), folder / "bench" / "test.jsonl")
    (folder / "recipe.yaml").write_text(RECIPE.format(world=folder))
    return folder


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums over several threads are rounded otherwise from run to run."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(Path(cli.__file__).parents[1]))


def command(world: Path, out: Path, *axes: str) -> list[str]:
    return ["sweep", str(world / "recipe.yaml"), *axes, "--bench", str(world / "bench"), "--out", str(out)]


def results(out: Path) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = json.loads((out / "results.json").read_text(encoding="utf-8"))
    return content


def logs(out: Path, step: str) -> dict[str, int]:
    """How often each point took a step."""
    return {
        file.name.removesuffix(f".{step}.log"): file.read_text(encoding="utf-8").count(f"$ d2e {step}")
        for file in (out / "logs").glob(f"*.{step}.log")
    }


def killed_in_training(world: Path, out: Path) -> None:
    """Start the sweep, and kill it with all its children when the second point has its second checkpoint."""
    process = subprocess.Popen(
        [sys.executable, "-m", "d2e_sft.cli", *command(world, out, *AXES)], start_new_session=True
    )
    try:
        deadline = time.monotonic() + 480  # a loaded machine, too, comes so far
        while not (out / "debias=true,alpha=1.0" / "checkpoint-4").is_dir():
            assert process.poll() is None, "it must not end by itself"
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture(scope="module")
def swept(world: Path) -> Path:
    """A sweep that was killed in its second training and begun again."""
    out = world / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("PYTHONPATH", str(Path(cli.__file__).parents[1]))
        killed_in_training(world, out)
        assert not (out / "debias=true,alpha=1.0" / "model.safetensors").exists(), "it was killed before the end"
        assert d2e(*command(world, out, *AXES)) == 0
    return out


def test_a_killed_sweep_goes_on_where_it_was(swept: Path) -> None:
    assert logs(swept, "train") == {
        "debias=true,alpha=0.5": 1,
        "debias=true,alpha=1.0": 2,
        "debias=false,alpha=0.5": 1,
    }
    assert set(logs(swept, "eval").values()) == {1}
    again = (swept / "logs" / "debias=true,alpha=1.0.train.log").read_text(encoding="utf-8")
    assert re.search(r"\$ d2e train .* --resume", again)


def test_a_resumed_training_is_the_one_that_was_left_alone(world: Path, swept: Path, tmp_path: Path) -> None:
    plain = ["d2e.debias=true", "d2e.alpha=1.0", f"train.output_dir={tmp_path / 'run'}"]
    done = subprocess.run(
        [sys.executable, "-m", "d2e_sft.cli", "train", str(world / "recipe.yaml"), *plain],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ours, alone = (load_file(run / "model.safetensors") for run in (swept / "debias=true,alpha=1.0", tmp_path / "run"))
    assert all(torch.equal(ours[name], alone[name]) for name in alone)


def test_equal_points_are_trained_and_scored_once_and_shown_twice(swept: Path) -> None:
    rows = {row["name"]: row for row in results(swept)}
    assert len(rows) == 4
    assert rows["debias=false,alpha=1.0"]["status"] == "same as debias=false,alpha=0.5"
    assert rows["debias=false,alpha=1.0"]["scores"] == rows["debias=false,alpha=0.5"]["scores"]
    assert not (swept / "debias=false,alpha=1.0").exists()
    scores = json.loads((swept / "debias=true,alpha=1.0" / "eval" / "bench" / "scores.json").read_text())
    assert scores["alpha"] == 1.0
    assert rows["debias=true,alpha=1.0"]["scores"]["f1"] == scores["overall"]["f1"]
    assert rows["debias=true,alpha=1.0"]["n"] == 4


def test_table_plot_page_and_paper_tables_are_left_in_the_folder(swept: Path) -> None:
    table = (swept / "results.md").read_text(encoding="utf-8")
    columns = [cell.strip() for cell in table.splitlines()[0].strip("|").split("|")]
    assert columns == ["debias", "alpha", "mean", "EM", "F1", "counterfactual", "temporal", "unparsed", "status"]
    assert (swept / "results.png").read_bytes().startswith(b"\x89PNG")
    page = (swept / "results.html").read_text(encoding="utf-8")
    assert "<svg" in page
    assert "debias=false</text>" in page
    assert not re.search(r"""(?:src|href)\s*=\s*["']?(?!["'#])""", page)
    assert "- w/o DEE" in (swept / "table-ablation.md").read_text(encoding="utf-8")
    assert [line.split(" <")[0] for line in (swept / "table-sensitivity.md").read_text().splitlines()[2:5]] == [
        "| model (α=0)", "| model (α=0.5)", "| model (α=1)"
    ]  # fmt: skip


def test_a_finished_sweep_repeats_nothing(world: Path, swept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {file: file.stat().st_mtime_ns for file in swept.rglob("*.safetensors")}
    assert d2e(*command(world, swept, *AXES)) == 0
    printed = capsys.readouterr().out
    assert printed.count("already scored") == 3
    assert before == {file: file.stat().st_mtime_ns for file in swept.rglob("*.safetensors")}
    assert d2e(*command(world, swept, *AXES), "--dry-run") == 0
    assert capsys.readouterr().out.count(": scored") == 3


def test_another_grid_is_refused_there(world: Path, swept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert d2e(*command(world, swept, "d2e.alpha=0.5,1.0")) == 1
    assert "was begun with another sweep\n  d2e.debias: 'true,false' → 'absent'" in capsys.readouterr().err


@pytest.mark.usefixtures("quick_steps")
def test_a_point_that_fails_does_not_lose_the_others(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = command(world, tmp_path / "out", "train.learning_rate=1e30,1e-3", "train.num_train_epochs=1")
    assert d2e(*call) == 1
    printed = capsys.readouterr()
    assert "1 of 2 points failed" in printed.err
    assert "learning_rate=1e30: d2e train failed (exit status 1)" in printed.err
    assert "the loss became" in printed.out, "the end of the log says why"
    assert [row["status"] for row in results(tmp_path / "out")] == ["failed", "scored"]
    assert d2e(*call) == 1, "its checkpoint of the last step does not make it a success"
    assert logs(tmp_path / "out", "train") == {"learning_rate=1e30": 2, "learning_rate=1e-3": 1}
    assert logs(tmp_path / "out", "eval") == {"learning_rate=1e-3": 1}


def test_a_dry_run_lists_the_points_and_leaves_nothing(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert d2e(*command(world, tmp_path / "out", *AXES), "--dry-run") == 0
    printed = capsys.readouterr().out
    assert f"4 points: 3 trainings and 3 evaluations in {tmp_path / 'out'}" in printed
    assert "debias=true, alpha=0.5: to be trained and scored" in printed
    assert "debias=false, alpha=1.0: the same as debias=false,alpha=0.5" in printed
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (["d2e.aplha=1,2"], "unknown key 'd2e.aplha'"),
        (["d2e.alpha=1,2", "--suite", "piper"], "either --bench or --suite"),
        (["d2e.alpha=1,2", "--eval-args", "--max-sample 5"], "--eval-args: No such option"),
        (["d2e.alpha=1,2", "--eval-args", "--out 'a"], "No closing quotation"),
        (["d2e.alpha=1,2", "--train-args", "--processes many"], "--train-args: Invalid value for '--processes'"),
        (["d2e.alpha=1,2", "data.train=nowhere.jsonl"], "data.train='nowhere.jsonl': no such file"),
    ],
)
def test_a_bad_call_is_one_message_and_leaves_nothing(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: list[str], said: str
) -> None:
    assert d2e(*command(world, tmp_path / "out"), *change) == 1
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_benchmark_that_is_not_there_is_said_before_training(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    places = {"no such file or folder": ["--bench", "nowhere"], "data build --suite": ["--suite", "piper"]}
    for said, place in places.items():
        assert d2e("sweep", world / "recipe.yaml", "d2e.alpha=1,2", "--out", "out", *place) == 1
        assert said in capsys.readouterr().err
    assert not Path("out").exists()


PLAN = """
recipe: {world}/recipe.yaml
bench: {world}/bench
eval_args: --max-new-tokens 4
evaluations:
  "": {{}}
  -plain: {{alpha: 0}}
runs:
  base: {{train: false}}
  d2e:
    overrides: {{train.num_train_epochs: 1}}
    evaluations:
      "": {{without_context: true}}
      -cut: {{plausibility: 0.2}}
      -cad: {{decoder: "cad:weight=2", without_context: true}}
comparisons: {{main: [base-plain, d2e, d2e-plain]}}
paper_tables: {{paper: {{layout: piper, points: [base, d2e]}}}}
reports: {{page: {{points: [base, d2e], no_texts: true, title: Mine}}}}
"""


@pytest.mark.usefixtures("quick_steps")
def test_a_plan_trains_and_scores_its_named_runs_and_makes_its_tables(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, out = tmp_path / "plan.yaml", tmp_path / "out"
    plan.write_text(PLAN.format(world=world))
    assert d2e("sweep", plan, "base", "--out", out) == 0
    assert {row["name"]: row["status"] for row in results(out)} == {
        "base": "scored", "base-plain": "scored",
        "d2e": "not scored", "d2e-plain": "not scored", "d2e-cut": "not scored",
        "d2e-cad": "not scored",
    }  # fmt: skip
    assert not (out / "main.md").exists(), "of the compared ones only the first is scored"
    assert d2e("sweep", plan, "--out", out) == 0, "the rest"
    assert "base: already scored" in capsys.readouterr().out
    assert logs(out, "train") == {"d2e": 1}
    assert logs(out, "eval") == {"base": 1, "base-plain": 1, "d2e": 2, "d2e-plain": 1, "d2e-cut": 1, "d2e-cad": 2}
    assert logs(out, "errors") == {"d2e": 1, "d2e-cad": 1}
    scores = {name: json.loads((out / name / "eval/bench/scores.json").read_text()) for name in logs(out, "eval")}
    assert {name: (one["alpha"], one.get("plausibility", 0.0)) for name, one in scores.items()} == {
        "base": (0.5, 0.0), "base-plain": (0.0, 0.0),
        "d2e": (0.5, 0.0), "d2e-plain": (0.0, 0.0), "d2e-cut": (0.5, 0.2),
        "d2e-cad": (None, 0.0),
    }  # fmt: skip
    assert scores["d2e-cad"]["decoder"] == "cad:weight=2"
    assert scores["base"]["model"] == str(world / "model")
    assert scores["d2e-plain"]["model"] == str(out / "d2e")
    assert (out / "d2e" / "eval" / "bench" / "error_patterns.json").is_file()
    assert "Paired difference to base-plain" in (out / "main.md").read_text()
    assert (out / "paper.tex").is_file()
    page = (out / "page.html").read_text()
    assert "<h1>Mine</h1>" in page
    assert not any(sample.question in page for sample in _test_samples())
    table = (out / "results.md").read_text().splitlines()
    names = ["base", "base-plain", "d2e", "d2e-plain", "d2e-cut", "d2e-cad"]
    assert [line.split("|")[1].strip() for line in table] == ["run", "-" * 12, *names]
    assert d2e("sweep", plan, "--out", out, "--dry-run") == 0
    assert capsys.readouterr().out.count(": scored") == 6


@pytest.mark.usefixtures("quick_steps")
def test_a_plan_that_scores_options_asks_a_model_once_for_all_decoders(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, out = tmp_path / "plan.yaml", tmp_path / "out"
    text = PLAN.format(world=world).partition("comparisons:")[0]
    text = text.replace("--max-new-tokens 4", "--answer likelihood").replace("plausibility: 0.2", "decoder: adacad")
    plan.write_text(text.replace(", without_context: true", "").replace("{without_context: true}", "{}"))
    assert d2e("sweep", plan, "--out", out, "--dry-run") == 0
    assert capsys.readouterr().out.count("  d2e eval ") == 2
    assert d2e("sweep", plan, "--out", out) == 0
    assert logs(out, "eval") == {"base": 1, "d2e": 1}
    capsys.readouterr()
    runs = ["base", "base-plain", "d2e", "d2e-plain", "d2e-cut", "d2e-cad"]
    assert {row["name"]: row["status"] for row in results(out)} == dict.fromkeys(runs, "scored")
    told = {run: json.loads((out / run / "eval/bench-likelihood/scores.json").read_text()) for run in runs}
    assert [told[run].get("decoder", told[run]["alpha"]) for run in runs] == [
        0.5,
        0.0,
        0.5,
        0.0,
        "adacad:floor=0",
        "cad:weight=2",
    ]
    assert d2e("sweep", plan, "--out", out) == 0
    assert capsys.readouterr().out.count("already scored") == 6


@pytest.mark.usefixtures("quick_steps")
def test_a_plan_may_grow_but_not_change(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan, out = tmp_path / "plan.yaml", tmp_path / "out"
    plan.write_text(PLAN.format(world=world))
    assert d2e("sweep", plan, "base", "--out", out) == 0
    plan.write_text(plan.read_text().replace("runs:\n", "runs:\n  sft: {overrides: {d2e.debias: false}}\n"))
    assert d2e("sweep", plan, "--out", out, "--dry-run") == 0
    assert "sft: to be trained and scored" in capsys.readouterr().out
    plan.write_text(plan.read_text().replace("train.num_train_epochs: 1", "train.num_train_epochs: 2"))
    assert d2e("sweep", plan, "--out", out) == 1
    assert "run d2e: train.num_train_epochs: 1.0 → 2.0" in capsys.readouterr().err
