"""Command lines that are refused, with the message of each: the table is `test_refusals.yaml`."""

import shutil
from pathlib import Path

import pandas as pd
import pytest

from d2e_sft.data.sample import write_samples
from tests.eval.paper_runs import PAPER, run
from tests.eval.systems.cases import CASES, save_gold
from tests.eval.systems.wiqa_files import tiny_bert
from tests.factories import bench_row, bench_rows, make_run, make_world, prediction, save_bench, write_recipe
from tests.messages import refused_lines
from tests.tiny import make_sample, save_tiny_model, tiny_model


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Models, benchmarks, builds and runs, sound and not, by the names that the lines have for them."""
    folder = make_world(tmp_path_factory.mktemp("world"), bench=bench_rows(2))
    write_recipe(folder, folder / "recipe")
    save_bench(folder / "qa", [bench_row(0, context="")])
    save_bench(folder / "nli", [bench_row(n) for n in (1, 3)])
    save_tiny_model(folder / "t5", "t5")
    save_tiny_model(folder / "bloom", "bloom")
    tiny_model().save_pretrained(folder / "untokenised")
    tiny_bert(folder / "bert")
    tiny_bert(folder / "short", positions=8)
    for name in CASES:
        save_gold(folder, name)
    # Files that are damaged.
    shutil.copytree(folder / "model", folder / "cut_model")
    (folder / "cut_model" / "model.safetensors").write_bytes(b"cut")
    (folder / "cut.parquet").write_bytes((folder / "bench" / "train.parquet").read_bytes()[:500])
    (folder / "label.jsonl").write_text(bench_row(1).model_dump_json().replace('["positive"]', '["maybe"]'))
    rows = pd.DataFrame([make_sample(n).model_dump(exclude={"meta"}) for n in range(4)])
    rows[rows.id != "s2"].to_parquet(folder / "indexed.parquet")
    # Rows with and without tags, as files and as builds.
    (folder / "mine.csv").write_text("question,answer,context\n")
    write_samples([make_sample(1, split="test")], folder / "rows.jsonl")
    save_bench(folder / "untagged", [make_sample(1, split="test")], manifest={})
    save_bench(folder / "tagged", [make_sample(1, split="test", subset="aligned", habit=["x"])], manifest={})
    # Runs with scores.
    make_run(folder / "run", [prediction(1, True), prediction(2, False)])
    run(folder / "paper", {key: value for key, value in PAPER.items() if key[0] != "cider"})
    run(folder / "moved", sha256="cd" * 32)
    run(folder / "subset", subset={"per_group": 2, "seed": 0, "of": 30})
    run(folder / "other", {("boxes", "temporal"): 10.0}, bench="boxes")
    places = {Path(path.name).stem.upper(): path for path in folder.iterdir()}
    return {**places, "RECIPE": folder / "recipe.yaml", "TRAIN": folder / "train.jsonl"}


@pytest.fixture
def places(world: dict[str, Path], judge_environment: None, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """The world, on a machine without a GPU."""
    monkeypatch.setattr("d2e_sft.train.launch.accelerators", lambda: 0)
    return world


test_refusal = refused_lines(__file__)
