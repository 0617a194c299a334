"""The whole flow on a tiny model through the command line: build, train, evaluate, compare, report."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from d2e_sft import cli
from d2e_sft.data.sample import EventSample, read_samples, write_samples
from d2e_sft.util.paths import bundled
from tests.command import d2e
from tests.tiny import make_sample, make_samples, save_tiny_model

RECIPE = """
model: {{name: {model}}}
data: {{train: {data}, max_length: 1000}}
d2e: {{alpha: 0.5}}
train: {{output_dir: {out}, num_train_epochs: 1, batch_size: 8, per_device_train_batch_size: 4, learning_rate: 3e-3,
         logging_steps: 1, bf16: false}}
eval: {{max_new_tokens: 4, batch_size: 4}}
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model, 16 training and 6 test samples, and a recipe."""
    folder = tmp_path_factory.mktemp("world")
    save_tiny_model(folder / "model")
    write_samples(make_samples(16), folder / "bench" / "train.parquet")
    write_samples(_test_samples(), folder / "bench" / "test.parquet")
    write_recipe(folder, "run")
    return folder


def _test_samples() -> list[EventSample]:
    labels = ["positive", "negative"]
    qa = [make_sample(i, split="test") for i in range(4)]
    return [*qa, *(make_sample(10 + i, split="test", format="nli", answers=[labels[i]]) for i in range(2))]


def write_recipe(world: Path, run: str) -> Path:
    path = world / f"{run}.yaml"
    path.write_text(
        RECIPE.format(model=world / "model", data=world / "bench" / "train.parquet", out=world / run), encoding="utf-8"
    )
    return path


def losses(run: Path) -> list[dict[str, Any]]:
    history = json.loads((run / "trainer_state.json").read_text())["log_history"]
    return [entry for entry in history if "loss" in entry]


@pytest.fixture(scope="module")
def trained(world: Path) -> Path:
    assert d2e("train", world / "run.yaml") == 0
    return world / "run"


def test_training_leaves_model_tokenizer_recipe_and_history(trained: Path) -> None:
    for file in ("model.safetensors", "config.json", "tokenizer.json", "recipe.yaml", "trainer_state.json"):
        assert (trained / file).is_file(), file
    for entry in losses(trained):
        assert {"loss", "ce", "kl", "debiased_accuracy", "tokens_per_second"} <= set(entry)


def test_evaluate_compare_and_report(
    world: Path, trained: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    base = tmp_path / "base"
    assert d2e("eval", trained, "--bench", world / "bench") == 0
    assert d2e("eval", world / "model", "--bench", world / "bench", "--out", base, "--max-new-tokens", 4) == 0
    scores = json.loads((trained / "eval" / "bench" / "scores.json").read_text())
    assert scores["alpha"] == 0.5, "a D²E run is decoded debiased by default"
    assert json.loads((base / "eval" / "bench" / "scores.json").read_text())["alpha"] == 0
    assert scores["overall"]["n"] == 6
    capsys.readouterr()
    assert d2e("compare", base, trained) == 0
    printed = capsys.readouterr().out
    assert "run against base: mean " in printed
    assert "made-up" in printed
    assert d2e("compare", base, trained, "--wide") == 0
    printed = capsys.readouterr().out
    assert "base EM" in printed
    assert "run F1" in printed
    assert d2e("report", base, trained, "--out", tmp_path / "report.html") == 0
    assert "<svg" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_subset_is_recorded_as_one(world: Path, trained: Path, tmp_path: Path) -> None:
    assert d2e("eval", trained, "--bench", world / "bench", "--out", tmp_path, "--max-samples", 1) == 0
    scores = json.loads((tmp_path / "eval" / "bench" / "scores.json").read_text())
    assert scores["subset"] == {"per_group": 1, "seed": 0, "of": 6}
    assert scores["overall"]["n"] == 2


def test_plain_sft_is_decoded_plainly(world: Path, tmp_path: Path) -> None:
    overrides = ["d2e.debias=false", "d2e.distill=false", f"train.output_dir={tmp_path / 'sft'}", "train.max_steps=1"]
    assert d2e("train", world / "run.yaml", *overrides) == 0
    assert losses(tmp_path / "sft")[0]["kl"] == 0
    assert d2e("eval", tmp_path / "sft", "--bench", world / "bench") == 0
    assert json.loads((tmp_path / "sft" / "eval" / "bench" / "scores.json").read_text())["alpha"] == 0


def test_an_adapter_is_trained_saved_and_evaluated(world: Path, tmp_path: Path) -> None:
    run = tmp_path / "lora"
    assert d2e("train", world / "run.yaml", "model.lora.r=4", f"train.output_dir={run}", "train.max_steps=2") == 0
    assert not (run / "model.safetensors").exists()
    weights = load_file(run / "adapter_model.safetensors")
    assert all(tensor.numel() for tensor in weights.values())
    assert any("lora_B" in name and tensor.abs().max() > 0 for name, tensor in weights.items())
    assert json.loads((run / "adapter_config.json").read_text())["base_model_name_or_path"] == str(world / "model")
    assert d2e("eval", run, "--bench", world / "bench") == 0


def test_a_run_folder_is_not_overwritten_by_accident(
    world: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (trained / "model.safetensors").stat().st_mtime_ns
    assert d2e("train", world / "run.yaml") == 1
    assert "already holds a run" in capsys.readouterr().err
    assert (trained / "model.safetensors").stat().st_mtime_ns == before


def test_resuming_continues_from_the_last_checkpoint(world: Path, tmp_path: Path) -> None:
    common = ["train.save_steps=2", "train.num_train_epochs=2"]
    assert d2e("train", world / "run.yaml", *common, f"train.output_dir={tmp_path / 'whole'}") == 0
    part = tmp_path / "part"
    (part / "checkpoint-2").parent.mkdir()
    for name in ("checkpoint-2", "recipe.yaml", "data.json"):
        (tmp_path / "whole" / name).rename(part / name)
    assert d2e("train", world / "run.yaml", *common, f"train.output_dir={part}", "--resume") == 0
    whole, resumed = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "part"))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert [entry["step"] for entry in losses(part)] == [entry["step"] for entry in losses(tmp_path / "whole")]


def test_resuming_needs_a_checkpoint_and_the_same_recipe(
    world: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert d2e("train", world / "run.yaml", "--resume") == 1
    assert "holds no checkpoint to resume from" in capsys.readouterr().err
    run = f"train.output_dir={tmp_path / 'run'}"
    assert d2e("train", world / "run.yaml", run, "train.save_steps=1") == 0
    assert d2e("train", world / "run.yaml", run, "train.save_steps=1", "d2e.alpha=0.9", "--resume") == 1
    assert "was begun with another recipe\n  d2e.alpha: 0.5 → 0.9\n" in capsys.readouterr().err


def test_overwriting_leaves_nothing_of_the_earlier_run(world: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    common = ["train", world / "run.yaml", f"train.output_dir={run}", "train.max_steps=1"]
    assert d2e(*common, "model.lora.r=2", "train.save_steps=1") == 0
    assert d2e("eval", run, "--bench", world / "bench") == 0
    (run / "notes.txt").write_text("mine")
    assert d2e(*common, "--overwrite") == 0
    assert (run / "model.safetensors").is_file()
    assert not list(run.glob("adapter_*")), "an old adapter would be loaded in place of the new weights"
    assert not list(run.glob("checkpoint-*"))
    assert not (run / "eval").exists()
    assert (run / "notes.txt").is_file()


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("train.output_dir={mine}", "is not a run folder"),
        ("model.name={run}", "lies in train.output_dir"),
        ("train.seed=-1", "greater than or equal to 0"),
        ("model.lora.target_modules=nope", "model.lora: does not fit"),
        ("d2e.alpha=.inf", "finite number"),
        ("train.learning_rate=1e30", "the loss became"),
    ],
)
def test_overwriting_never_costs_more_than_the_run(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], override: str, said: str
) -> None:
    run, mine = tmp_path / "run", tmp_path / "mine"
    assert d2e("train", world / "run.yaml", f"train.output_dir={run}", "train.max_steps=1") == 0
    (mine / "eval").mkdir(parents=True)
    (mine / "eval" / "metrics.py").write_text("mine")
    arguments = [f"train.output_dir={run}", "train.max_steps=5", override.format(mine=mine, run=run)]
    assert d2e("train", world / "run.yaml", *arguments, "--overwrite") == 1
    assert said in capsys.readouterr().err
    assert (mine / "eval" / "metrics.py").is_file()
    if "the loss became" not in said:
        assert (run / "model.safetensors").is_file(), "a mistake in the call must not cost the earlier run"


def test_a_checkpoint_of_a_run_is_decoded_as_the_run_is(world: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    overrides = [f"train.output_dir={run}", "train.max_steps=1", "train.save_steps=1", "d2e.alpha=0.3"]
    assert d2e("train", world / "run.yaml", *overrides) == 0
    assert d2e("eval", run / "checkpoint-1", "--bench", world / "bench") == 0
    assert json.loads((run / "checkpoint-1" / "eval" / "bench" / "scores.json").read_text())["alpha"] == 0.3


def test_two_processes_under_accelerate_launch_train_as_one_does(world: Path, trained: Path, tmp_path: Path) -> None:
    # The recipe as it is: batches of 8, in micro-batches of 4, so each process takes half and none accumulates.
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    launched = subprocess.run(
        [
            sys.executable, "-m", "accelerate.commands.launch",
            "--config_file", str(bundled("launch") / "accelerate" / "ddp.yaml"), "--main_process_port", str(port),
            "-m", "d2e_sft.train", str(world / "run.yaml"), f"train.output_dir={tmp_path / 'two'}",
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(cli.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )  # fmt: skip
    assert launched.returncode == 0, launched.stderr[-3000:]
    assert "batch 8 on 2 processes" in launched.stdout, "equal losses would hide two runs of one process"
    one, two = losses(trained), losses(tmp_path / "two")
    assert len(one) == len(two) == 2
    for single, double in zip(one, two, strict=True):
        for key in ("loss", "ce", "kl", "debiased_accuracy", "grad_norm"):
            assert double[key] == pytest.approx(single[key], rel=1e-4), key
    one_weights, two_weights = (load_file(run / "model.safetensors") for run in (trained, tmp_path / "two"))
    for name, tensor in one_weights.items():
        # Adam turns gradients near zero into steps of full size, so rounding shows up to a fraction of one step.
        torch.testing.assert_close(two_weights[name], tensor, rtol=0, atol=3e-4, msg=name)


def test_processes_that_do_not_find_each_other_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from d2e_sft.util.distributed import process_state
    from d2e_sft.util.errors import UserError

    assert process_state().num_processes == 1
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="2 processes were launched, but training sees 1"):
        process_state()
    monkeypatch.delenv("WORLD_SIZE")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    with pytest.raises(UserError, match=r"MASTER_ADDR is set and WORLD_SIZE is not[\s\S]*unset MASTER_ADDR"):
        process_state()


def test_a_batch_that_the_processes_cannot_share_is_refused(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from d2e_sft.config.recipe import load_recipe
    from d2e_sft.train.prepare import accumulation_steps
    from d2e_sft.util.errors import UserError

    recipe = load_recipe(world / "run.yaml")
    assert accumulation_steps(recipe.train, 1) == 2
    assert accumulation_steps(recipe.train, 2) == 1
    with pytest.raises(UserError, match="on 3 processes"):
        accumulation_steps(recipe.train, 3)


@pytest.fixture
def bad_inputs(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str | Path]:
    """Names for the arguments below, in a working folder of their own."""
    monkeypatch.chdir(tmp_path)
    good = [sample.model_dump() for sample in read_samples(world / "bench" / "test.parquet")]
    Path("cut.parquet").write_bytes((world / "bench" / "train.parquet").read_bytes()[:500])
    _write_jsonl("empty_answer.jsonl", [good[0], {**good[1], "answers": [""]}])
    cut_model = save_tiny_model(Path("cut-model"))
    (cut_model / "model.safetensors").write_bytes(b"cut")
    _write_jsonl("bad_label.jsonl", [{**good[5], "answers": ["maybe"]}])
    return {
        "run": world / "run.yaml",
        "model": world / "model",
        "bench": world / "bench",
        "cut_model": cut_model,
        "cut": "cut.parquet",
        "empty_answer": "empty_answer.jsonl",
        "bad_label": "bad_label.jsonl",
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "{run}", "d2e.aplha=1"], "unknown key 'd2e.aplha'"),
        (["train", "{run}", "model.name=nobody/no-such-model", "train.output_dir=x"], "model 'nobody/no-such-model'"),
        (["train", "{run}", "model.name=./nowhere", "train.output_dir=x"], "no such folder"),
        (["train", "{run}", "model.name=builtin:smolm", "train.output_dir=x"], "no such builtin"),
        (["train", "{run}", "data.train=none.parquet", "train.output_dir=x"], "none.parquet: no such file"),
        (["train", "{run}", "data.train={cut}", "train.output_dir=x"], "not a readable Parquet file"),
        (["train", "{run}", "data.train={empty_answer}", "train.output_dir=x"], "line 2: answers.0: got ''"),
        (["eval", "{model}", "--bench", "{bad_label}"], "expected one of ['positive', 'negative']"),
        (["eval", "{model}", "--bench", "nowhere"], "benchmark 'nowhere': no such file or folder"),
        (["eval", "{cut_model}", "--bench", "{bench}"], "cannot be loaded (SafetensorError"),
        (["eval", "{model}", "--bench", "{bench}", "--out", "{cut}"], "cut.parquet"),
        (["train", "{run}", "data.train={bench}", "train.output_dir=x"], "is a folder; expected a file"),
        (["train", "{run}", "train.fp16=true", "train.output_dir=x"], "needs a CUDA device"),
        (["train", "{run}", "model.dtype=float16", "train.output_dir=x"], "gradients of float16 weights underflow"),
        (["train", "nowhere.yaml"], "nowhere.yaml: no such recipe"),
        (
            ["data", "build", "--datasets", "tracie", "--raw", "nowhere", "--out", "x"],
            "--raw nowhere: no such folder; expected a folder with raw files as DATASET/FILE",
        ),
        (["compare", "nowhere"], "nowhere"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_bad_input_ends_in_one_message_without_traceback(
    bad_inputs: dict[str, str | Path], capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert d2e(*(argument.format(**bad_inputs) for argument in arguments)) not in (0, None)
    printed = capsys.readouterr()
    assert said in printed.err
    assert printed.err.count("error:") == 1
    assert "Traceback" not in printed.err
    assert not Path("x").exists(), "a refused command leaves no folder behind"


def _write_jsonl(name: str, rows: list[dict[str, Any]]) -> None:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def test_debug_shows_the_traceback(world: Path) -> None:
    from d2e_sft.util.errors import UserError

    with pytest.raises(UserError, match="no such recipe"):
        cli.main(["train", "--debug", "nowhere.yaml"])


def test_skipped_bad_rows_are_kept_and_counted(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [sample.model_dump() for sample in make_samples(9)]
    rows[3]["answers"] = [""]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = tmp_path / "run"
    assert d2e("train", world / "run.yaml", f"data.train={data}", "data.skip_bad=true", f"train.output_dir={run}") == 0
    assert "1 bad rows skipped, kept in" in capsys.readouterr().out
    assert json.loads((run / "bad_rows.jsonl").read_text())["line"] == 4
