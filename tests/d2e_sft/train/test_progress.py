"""What a training prints: aligned columns, told once, and lines of evaluation and probe that fit a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.config.recipe import load_recipe
from d2e_sft.train.progress import LossLines
from d2e_sft.train.run import train_recipe
from tests.command import call
from tests.factories import make_world, write_recipe
from tests.tiny import make_sample

LOGS = {
    "loss": 5.64993, "grad_norm": 2.2, "learning_rate": 1e-5, "ce": 5.643, "kl": 0.007115, "debiased_accuracy": 0.125,
    "plain_accuracy": 0.1, "bias_share": 0.0, "alpha": 0.5, "tokens_per_second": 1668.3, "epoch": 0.4,
}  # fmt: skip


def test_a_line_has_the_terms_that_count_and_its_header_comes_once() -> None:
    lines = LossLines()
    header, first = (line.split() for line in lines.lines(1, LOGS))
    assert dict(zip(header, first, strict=True)) == {
        "step": "1", "loss": "5.65", "ce": "5.643", "kl": "0.007115", "accuracy": "12.5", "tokens/s": "1,668"
    }  # fmt: skip
    assert len(lines.lines(1_000, {**LOGS, "tokens_per_second": 12_345.6})) == 1
    pairs = {**LOGS, "kl": 0.0, "preference": 0.69, "rewards/accuracies": 0.75, "kl_rows": 0.34}
    header, first = (line.split() for line in LossLines().lines(1, pairs))
    assert dict(zip(header, first, strict=True)).items() >= {"preference": "0.69", "preferred": "75.0"}.items()
    assert "ce" not in LossLines().lines(1, {**LOGS, "kl": 0.0})[0].split(), "a single term is the loss"


def test_a_training_prints_lines_and_no_dict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dev = [make_sample(i, split="dev") for i in (10, 11)]
    probe = [make_sample(20, split="test", subset="aligned"), make_sample(21, split="test", subset="conflict")]
    make_world(tmp_path, train=4, dev=dev, probe=probe, bench=0)
    rows = [f"data.dev={tmp_path}/dev.jsonl", f"data.probe={tmp_path}/probe.jsonl"]
    recipe = write_recipe(tmp_path, tmp_path / "run", *rows, "train.max_steps=2", "train.eval_steps=2")
    train_recipe(load_recipe(str(recipe)))
    printed = capsys.readouterr().out
    first = next(
        line for line in printed.splitlines() if not line.startswith("[")
    )  # DeepSpeed's own, as it is imported
    assert first.startswith("objective: d2e; others: sft, teacher, prefer ")
    assert "{'" not in printed
    assert printed.count("tokens/s") == 1
    assert "step 2, held out: loss " in printed
    assert "step 0, aligned / conflict: plainly " in printed
    assert "step 2, aligned / conflict: plainly " in printed
    assert "2 steps in " in printed
    lines = [line for line in printed.splitlines() if "step" in line or line[:6].strip().isdigit()]
    assert len(lines) >= 6
    assert max(map(len, lines)) <= 100


def test_quiet_leaves_only_results_and_warnings(tmp_path: Path) -> None:
    make_world(tmp_path, train=4, bench=0)
    recipe = write_recipe(tmp_path, tmp_path / "run", "train.max_steps=2")
    called = call("train", recipe, "--quiet", f"data.dev={tmp_path}/train.jsonl", "train.sample_predictions=0")
    assert called.status == 0, called.err
    assert called.out == f"trained: {tmp_path / 'run'}\n"
    assert "nothing is held out" in called.err, "a warning"
    assert "step" in call("train", recipe, "--overwrite").out
