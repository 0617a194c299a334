"""The whole flow on a tiny model through the command line: build, train, evaluate, compare, report."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from d2e_sft import cli
from tests.command import d2e, output_of, refusal_of
from tests.factories import log_history, make_world, scores_of, write_recipe
from tests.tiny import make_samples


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, 16 training and 6 test samples, and a recipe of two steps."""
    folder = make_world(tmp_path_factory.mktemp("world"), train=16, bench=6)
    sizes = ("train.batch_size=8", "train.per_device_train_batch_size=4", "train.max_steps=2")
    write_recipe(folder, folder / "run", *sizes, "eval.max_new_tokens=4", "eval.batch_size=4")
    return folder


@pytest.fixture(scope="module")
def trained(world: Path) -> Path:
    assert d2e("train", world / "run.yaml") == 0
    return world / "run"


def test_training_leaves_model_tokenizer_recipe_and_history(trained: Path) -> None:
    for file in ("model.safetensors", "config.json", "tokenizer.json", "recipe.yaml", "trainer_state.json"):
        assert (trained / file).is_file(), file
    for entry in log_history(trained)[:2]:
        assert {"loss", "ce", "kl", "debiased_accuracy", "tokens_per_second"} <= set(entry)


def test_evaluate_compare_and_report(world: Path, trained: Path, tmp_path: Path) -> None:
    base = tmp_path / "base"
    assert d2e("eval", trained, "--bench", world / "bench") == 0
    assert d2e("eval", world / "model", "--bench", world / "bench", "--out", base, "--max-new-tokens", 4) == 0
    scores = scores_of(trained)
    assert scores["alpha"] == 0.5, "a D²E run is decoded debiased by default"
    assert scores_of(base)["alpha"] == 0
    assert scores["overall"]["n"] == 6
    printed = output_of("compare", base, trained)
    assert "run against base: mean " in printed
    assert "made-up" in printed
    printed = output_of("compare", base, trained, "--wide")
    assert "with 95 % intervals" in " ".join(printed.split())
    assert "|" not in printed, "Markdown is for files"
    assert d2e("compare", base, trained, "--out", tmp_path / "c.md") == 0
    assert "| base " in (tmp_path / "c.md").read_text(encoding="utf-8")
    assert d2e("report", base, trained, "--out", tmp_path / "report.html") == 0
    assert "<svg" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_subset_is_recorded_as_one(world: Path, trained: Path, tmp_path: Path) -> None:
    assert d2e("eval", trained, "--bench", world / "bench", "--out", tmp_path, "--max-samples", 1) == 0
    scores = scores_of(tmp_path)
    assert scores["subset"] == {"per_group": 1, "seed": 0, "of": 6}
    assert scores["overall"]["n"] == 2


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
        ("model.name={run}", "is inside train.output_dir"),
        ("train.seed=-1", "greater than or equal to 0"),
        ("model.lora.target_modules=nope", "model.lora: does not fit"),
        ("d2e.alpha=.inf", "finite number"),
        ("train.learning_rate=1e30", "the loss became"),
    ],
)
def test_overwriting_never_costs_more_than_the_run(
    world: Path, trained: Path, tmp_path: Path, override: str, said: str
) -> None:
    run, mine = tmp_path / "run", tmp_path / "mine"
    shutil.copytree(trained, run)
    (mine / "eval").mkdir(parents=True)
    (mine / "eval" / "metrics.py").write_text("mine")
    arguments = [f"train.output_dir={run}", "train.max_steps=5", override.format(mine=mine, run=run)]
    assert said in refusal_of("train", world / "run.yaml", *arguments, "--overwrite")
    assert (mine / "eval" / "metrics.py").is_file()
    if "the loss became" not in said:
        assert (run / "model.safetensors").is_file(), "a mistake in the call must not cost the earlier run"


def _write_jsonl(file: Path, rows: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def test_debug_shows_the_traceback(world: Path) -> None:
    from d2e_sft.util.errors import UserError

    with pytest.raises(UserError, match="no such recipe"):
        cli.main(["train", "--debug", "nowhere.yaml"])


def test_skipped_bad_rows_are_kept_and_counted(world: Path, tmp_path: Path) -> None:
    rows = [sample.model_dump() for sample in make_samples(9)]
    rows[3]["answers"] = [""]
    data, run = tmp_path / "rows.jsonl", tmp_path / "run"
    _write_jsonl(data, rows)
    words = [f"data.train={data}", "data.skip_bad=true", f"train.output_dir={run}", "train.max_steps=1"]
    assert "1 bad rows skipped, kept in" in output_of("train", world / "run.yaml", *words)
    assert json.loads((run / "bad_rows.jsonl").read_text())["line"] == 4
