"""`d2e train --dry-run` on a tiny model: what it shows, and that it leaves nothing behind."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from d2e_sft import cli
from d2e_sft.config.recipe import load_recipe
from d2e_sft.model.packing_support import Layout
from d2e_sft.train.dry_run.costs import draw
from d2e_sft.train.dry_run.report import dry_run
from d2e_sft.train.prepare import count_steps
from d2e_sft.train.trainer import D2ETrainer
from d2e_sft.util.errors import UserError


def shown(recipe_file: Path, *overrides: str, **options: Any) -> str:
    lines: list[str] = []
    dry_run(load_recipe(recipe_file, overrides), lines.append, **options)
    return "\n".join(lines)


def section(text: str, title: str) -> str:
    return next(part for part in text.split("== ") if part.startswith(title))


@pytest.fixture(scope="module")
def whole(recipe_file: Path) -> str:
    return shown(recipe_file)


def test_the_command_shows_every_section_and_writes_nothing(
    recipe_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(recipe_file.parent.rglob("*"))
    cli.main(["train", str(recipe_file), "train.num_train_epochs=2", "--dry-run"])
    printed = capsys.readouterr().out
    for title in ("recipe", "run folder", "samples", "lengths", "layout", "steps", "memory per device", "time"):
        assert f"== {title}" in printed, title
    assert "num_train_epochs: 2" in section(printed, "recipe")
    assert sorted(recipe_file.parent.rglob("*")) == before


def test_steps_are_those_of_the_trainer(recipe_file: Path, whole: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from d2e_sft.train import run as train

    seen: dict[str, int] = {}

    def only_count(self: D2ETrainer, **options: Any) -> Any:
        values = self.set_initial_training_values(self.args, self.get_train_dataloader())
        seen.update(per_epoch=values[1], total=values[-1], warmup=self.args.get_warmup_steps(values[-1]))
        raise KeyboardInterrupt

    monkeypatch.setattr(D2ETrainer, "train", only_count)
    out = recipe_file.parent / "counted"
    with pytest.raises(KeyboardInterrupt):
        train.train_recipe(load_recipe(recipe_file, [f"train.output_dir={out}"]))
    steps = section(whole, "steps")
    assert f"= {seen['per_epoch']} optimiser steps per epoch" in steps
    assert f"{seen['total']} optimiser steps in all (3 epochs), {seen['warmup']} of them warm-up" in steps


def test_first_middle_and_longest_are_shown(whole: str) -> None:
    text = section(whole, "samples")
    assert "first: s0 " in text
    assert "longest: s" in text
    lengths = {which: text.split(f"{which}: s")[1].split("original: prompt ")[1].split(" ")[0] for which in
               ("first", "of middle length", "longest")}  # fmt: skip
    assert int(lengths["of middle length"]) < int(lengths["longest"])


def test_overlong_samples_are_counted_and_the_rest_is_shown(recipe_file: Path, whole: str) -> None:
    lengths = section(whole, "lengths")
    longest = int(lengths.split("longest view + answer")[1].split("\n")[0].split()[-1])
    limit = f"data.max_length={longest - 1}"
    text = shown(recipe_file, limit)
    over = int(section(text, "lengths").split(f"{limit}: ")[1].split(" ")[0])
    assert 0 < over < 18
    assert f"training would stop: data.overlong=error allows no sample over the limit, and {over} are" in text
    assert f"raise data.max_length to {longest}" in text
    assert "== time" in text


def test_a_run_in_the_folder_is_said_and_left_alone(recipe_file: Path, tmp_path: Path) -> None:
    (tmp_path / "trainer_state.json").write_text(json.dumps({}))
    out = f"train.output_dir={tmp_path}"
    text = section(shown(recipe_file, out), "run folder")
    assert "training would stop" in text
    assert "already contains a run" in text
    assert "--overwrite" in text
    assert "contains no checkpoint to resume from" in section(shown(recipe_file, out, resume=True), "run folder")
    assert [path.name for path in tmp_path.iterdir()] == ["trainer_state.json"]


def test_a_launcher_divides_memory_and_time(recipe_file: Path) -> None:
    # 18 samples on 2 processes: 3 micro-batches each instead of 5.
    text, whole = (shown(recipe_file, launcher=name, processes=2) for name in ("zero2", "ddp"))
    assert "== memory per device (--launch zero2 on 2 processes)" in text
    assert "a step: 1 micro-batches of 4 on 2 processes" in text
    assert "divided by 2 processes (linear scaling)" in text

    def mebibytes(part: str, name: str) -> float:
        return float(section(part, "memory").split(name)[1].split()[0])

    for name, part in (("gradients", 4), ("optimiser state", 2)):  # DDP holds gradients twice
        assert mebibytes(text, name) == pytest.approx(mebibytes(whole, name) / part, abs=0.1)
    assert mebibytes(text, "weights") == mebibytes(whole, "weights")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["model.name=./nowhere"], "no such folder"),
        (["data.train=none.parquet"], "none.parquet: no such file"),
        (["data.max_length=20"], "all 18 samples exceed data.max_length=20"),
        (["--launch", "zero9", "--processes", "2"], "--launch zero9: no such launcher"),
        (["--launch", "ddp", "--processes", "3"], "cannot be split into micro-batches"),
        (["--processes", "3"], "needs --launch"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_training_refuses_is_refused(
    recipe_file: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["train", str(recipe_file), "--dry-run", *arguments])
    assert stop.value.code == 1
    assert said in capsys.readouterr().err
    assert not (recipe_file.parent / "run").exists()


@pytest.mark.parametrize("overrides", [["model.lora.r=2"], ["train.packing=batched"], ["d2e.view_gradients=original"]])
def test_every_kind_of_run_gets_memory_and_time(recipe_file: Path, overrides: list[str]) -> None:
    text = shown(recipe_file, *overrides)
    assert re.search(r"at the peak .* measured: growth of this process", section(text, "memory per device"))
    assert "in all, without loading" in section(text, "time")


def test_other_moments_than_those_measured_are_said(recipe_file: Path) -> None:
    text = section(shown(recipe_file, "train.optim=sgd"), "memory per device")
    assert "; with AdamW's moments, not those of sgd" in text


def test_memory_that_cannot_be_measured_is_estimated(recipe_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def untold() -> None:
        raise UserError("memory cannot be measured")

    monkeypatch.setattr("d2e_sft.train.dry_run.costs.PeakMemory", untold)
    assert re.search(r"at the peak .* estimated", section(shown(recipe_file), "memory per device"))


def test_a_device_that_is_too_small_is_said(recipe_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_much(*arguments: Any, **options: Any) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr("d2e_sft.train.dry_run.costs.forward_backward", too_much)
    text = shown(recipe_file)
    assert "not measured: a micro-batch does not fit cpu" in section(text, "time")
    assert "activations" in section(text, "memory per device")


@pytest.mark.parametrize(("packing", "heaviest"), [("batched", "wide"), ("shared_batch", "full")])
def test_the_heaviest_micro_batch_is_of_what_costs_in_its_layout(
    recipe_file: Path, packing: str, heaviest: str
) -> None:
    wide = {"original": [1] * 50, "imagined": [2] * 10, "refined": [3] * 10, "answer": [4]}
    full = {"original": [1] * 40, "imagined": [2] * 40, "refined": [3] * 40, "answer": [4]}
    recipe = load_recipe(recipe_file, ["train.batch_size=1", "train.per_device_train_batch_size=1"])
    steps = count_steps(recipe.train, 2, 1)
    _, heaviest_rows, _ = draw(recipe, [wide, full], Layout(packing, "sdpa"), steps)  # type: ignore[arg-type]
    assert heaviest_rows == [["wide", "full"].index(heaviest)]


def test_micro_batches_by_tokens_are_told_as_the_run_will_cut_them(recipe_file: Path) -> None:
    text = shown(recipe_file, "train.micro_batch_tokens=1000")
    assert re.search(r"a step: [\d.]+ micro-batches of at most 1000 tokens \([\d.]+ samples on average\)", text)
    found = re.search(r"for the heaviest micro-batch, \d+ samples: (\d+) tokens laid out", text)
    assert found is not None
    assert 476 < int(found.group(1)) <= 1000
