"""Run folders as training and evaluation leave them, with tiny models, and a process that lacks this package."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model

from d2e_sft.config.recipe import DataSection, Recipe, load_recipe
from d2e_sft.data.data_record import DATA_FILE, DataRecord, DataSource
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import write_samples
from d2e_sft.hub.card import model_card
from d2e_sft.util.files import sha256_of, with_checksums, write_json
from tests.factories import save_manifest, seal_run
from tests.tiny import make_samples, save_tiny_model, tiny_model, tiny_tokenizer

WITHOUT_THIS_PACKAGE = """
import importlib.abc, sys
class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("d2e_sft", "data_builders", "eval"):
            raise ModuleNotFoundError(f"{name} is not installed here")
sys.meta_path.insert(0, Refuse())
"""


def make_run(folder: Path, kind: str = "llama", *changes: str, lora: bool = False, base: str | None = None) -> Path:
    """A finished run; `changes` override its recipe, `base` is the name of an adapter's base model."""
    run, data = folder / "runs" / "tiny", folder / "data"
    data.mkdir(parents=True)
    write_samples(make_samples(8), data / "train.parquet")
    if lora:
        name = str(save_tiny_model(folder / "base", kind, seed=1)) if base is None else base
        model = get_peft_model(tiny_model(kind, seed=1), LoraConfig(r=2, target_modules="all-linear"))
        torch.manual_seed(3)
        for parameter in model.parameters():
            if parameter.requires_grad:
                torch.nn.init.normal_(parameter, std=0.5)
        model.peft_config["default"].base_model_name_or_path = name
        model.save_pretrained(run)
        tiny_tokenizer().save_pretrained(run)
    else:
        name = "someone/tiny"
        save_tiny_model(run, kind, seed=1)
    recipe = Recipe.model_validate(
        {
            "model": {"name": name, "lora": {"r": 2} if lora else None},
            "data": DataSection(train=str(data / "train.parquet")).model_dump(),
            "train": {"output_dir": str(run)},
            "eval": {"max_new_tokens": 12},
        }
    )
    recipe.save(run)
    load_recipe(run / "recipe.yaml", changes).save(run)
    seal_run(run)
    return run


def write_data_record(run: Path, wording: str | None = None) -> None:
    """`RUN/data.json` of a training on 5 samples, worded by these prompt sets."""
    source = DataSource.of(load_recipe(run / "recipe.yaml"))
    record = DataRecord(source=source, samples=5, tokens_sha256="", processes=1, versions={}, wording=wording)
    (run / DATA_FILE).write_text(record.model_dump_json())


def write_manifest(run: Path, *, sha256: str | None = None, own: Sequence[str] = ()) -> None:
    """The manifest of a build beside the run's data; `sha256` stands for other rows than the run's.

    `own` are formats of a user's own data, a dataset each, instead of published ones.
    """
    train = Path(load_recipe(run / "recipe.yaml").data.train)
    entry = {
        "licence": "CC-BY-4.0",
        "redistribution": "allowed by the licence",
        "homepage": "https://example.org/made-up",
        "splits": {
            "train": {
                "rows_written": 8,
                "rows_by_relation": {"temporal": 8},
                "rows_by_subset": {"conflict": 4, "aligned": 3},
            },
            "test": {"rows_written": 3},
        },
    }
    only_test = {**entry, "splits": {"test": {"rows_written": 5}}}
    outputs = {"train.parquet": {"bytes": 1, "sha256": sha256 or sha256_of(train)}}
    swap = {"share": 0.5, "datasets": {"made-up": {"rows": 8, "wanted": 4, "swapped": 2}}}
    datasets: dict[str, dict[str, Any]] = {"made-up": entry, "unseen": only_test}
    if own:
        places = {f"mine-{n}": {"context_in": f"<doc-{n}>"} if fmt == "chat" else {} for n, fmt in enumerate(own)}
        contents = {name: {"format": fmt, **places[name]} for name, fmt in zip(places, own, strict=True)}
        datasets = {
            name: {**entry, "format": content["format"], "described_by": {"content": content}}
            for name, content in contents.items()
        }
    save_manifest(train.parent, outputs=outputs, datasets=datasets, swap=swap)


def interval(mean: float) -> dict[str, float]:
    """An interval of ten percentage points around a mean."""
    return {"mean": mean, "low": mean - 0.05, "high": mean + 0.05}


def group(dataset: str, relation: str, fmt: str, n: int, mean: float) -> dict[str, Any]:
    scores = {"mean": interval(mean), "exact_match": interval(mean - 0.1), "f1": interval(mean + 0.1)}
    return {"dataset": dataset, "relation": relation, "format": fmt, "n": n, **scores}


def write_scores(run: Path, name: str = "mini", **changes: Any) -> None:
    """`RUN/eval/NAME/scores.json` as `d2e eval` writes it."""
    relation = {"relation": "temporal", "groups": 2, "mean": 0.55, "exact_match": 0.45, "f1": 0.65}
    scores = {
        "model": str(run),
        "alpha": 0.5,
        "setting": "zero_shot",
        "prompt_set": "default",
        "bench": {"name": name, "file": str(run.parent / "test.parquet"), "sha256": "0"},
        "subset": {"per_group": 30, "seed": 0, "of": 6356},
        "overall": group("all", "all", "all", 90, 0.6),
        "relations": [relation],
        "groups": [
            group("tracie", "temporal", "nli", 20, 0.5),
            group("ecare", "causal", "qa", 40, 0.7),
            group("mctaco", "temporal", "mcq", 30, 0.6),
        ],
        **changes,
    }
    write_json(run / "eval" / name / "scores.json", with_checksums(scores))


def card_code(folder: Path, name: str | None = None) -> str:
    """The Python program in a folder's card, for the model `name` (default: the folder itself)."""
    match = re.search(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    assert match is not None
    return match[1].replace('"OWNER/NAME"', repr(str(folder if name is None else name)))


def run_elsewhere(program: str, place: Path, **environment: str) -> str:
    """What a program prints in a process of its own that cannot import this package."""
    place.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-I", "-c", WITHOUT_THIS_PACKAGE + program],
        cwd=place,
        env={"PATH": os.environ["PATH"], "HOME": str(place), "HF_HOME": str(place / "hf"), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def content_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def card_of(run: Path, *, adapter: bool = False, licence: str | None = None) -> str:
    recipe = load_recipe(run / "recipe.yaml")
    return model_card(run, recipe, load_prompt_set("default"), adapter=adapter, licence=licence)


def section_of(card: str, title: str) -> str:
    match = re.search(rf"^## {title}\n\n(.*?)(?=^## |\Z)", card, re.DOTALL | re.MULTILINE)
    assert match is not None, title
    return match[1]
