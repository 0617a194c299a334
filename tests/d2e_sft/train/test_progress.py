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


def test_the_header_is_told_once_and_columns_are_aligned() -> None:
    lines = LossLines()
    header, first = lines.lines(1, LOGS)
    assert header.split() == ["step", "loss", "ce", "kl", "accuracy", "tokens/s"]
    assert first.split() == ["1", "5.65", "5.643", "0.007115", "12.5", "1,668"]
    (second,) = lines.lines(1_000, {**LOGS, "tokens_per_second": 12_345.6})
    assert len(header) == len(first) == len(second)
    assert [header.index(name) + len(name) for name in ("loss", "accuracy")] == [
        second.index(value) + len(value) for value in ("5.65", "12.5")
    ]


def test_the_share_of_rows_that_the_divergence_acts_on_is_a_column() -> None:
    terms = {"refined_ce": 5.6, "imagined_ce": 5.6, "kl_rows": 0.34}
    header, line = LossLines().lines(12_345, {**LOGS, **terms})
    assert header.split()[-3:] == ["kl_rows", "accuracy", "tokens/s"]
    assert line.split()[-3:] == ["34.0", "12.5", "1,668"]
    assert len(header) == len(line) <= 100


def test_pairs_have_their_loss_and_the_share_that_is_preferred() -> None:
    header, line = LossLines().lines(1, {**LOGS, "kl": 0.0, "preference": 0.69, "rewards/accuracies": 0.75})
    assert header.split() == ["step", "loss", "ce", "preference", "preferred", "accuracy", "tokens/s"]
    assert line.split()[3:5] == ["0.69", "75.0"]


def test_a_single_term_is_not_told_twice() -> None:
    header, _ = LossLines().lines(1, {**LOGS, "kl": 0.0})
    assert header.split() == ["step", "loss", "accuracy", "tokens/s"]


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
