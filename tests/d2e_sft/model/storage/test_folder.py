"""A model's folder that was damaged, edited or made by an attacker is refused before anything in it is used."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from d2e_sft.config.recipe import recipe_of
from d2e_sft.model.loading import load_model
from d2e_sft.model.storage.folder import check_model_files
from d2e_sft.util.errors import UserError
from tests.command import call, output_of
from tests.factories import make_world, seal_run, write_recipe
from tests.tiny import save_tiny_model

ADAPTER = ("model.lora={r: 2}", "train.save_steps=2", "train.max_steps=2")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A world with the runs `whole` and `adapter`, each with a checkpoint at step 2."""
    world = make_world(tmp_path_factory.mktemp("trained"), train=4)
    output_of("train", write_recipe(world, world / "whole", "train.save_steps=2", "train.max_steps=2"))
    output_of("train", write_recipe(world, world / "adapter", *ADAPTER))
    return world


@pytest.fixture
def world(trained: Path, tmp_path: Path) -> Path:
    """A copy to damage. The adapters' base is still in `trained`, see `own_base`."""
    return Path(shutil.copytree(trained, tmp_path / "world"))


@pytest.fixture
def own_base(trained: Path) -> Any:
    """The base model under the adapters, restored afterwards."""
    file = trained / "model" / "model.safetensors"
    content = file.read_bytes()
    yield file
    file.write_bytes(content)


def flip(file: Path) -> None:
    """Flip one bit in the last number of a file."""
    content = bytearray(file.read_bytes())
    content[-2] ^= 1
    file.write_bytes(content)


def edit(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize("folder", ["whole", "adapter", "whole/checkpoint-2", "adapter/checkpoint-2"])
def test_a_finished_run_and_its_checkpoints_are_loaded(trained: Path, folder: str) -> None:
    load_model(str(trained / folder))
    recipe = recipe_of(str(trained / folder))
    assert recipe is not None
    assert recipe.decoding.alpha == 0.5


@pytest.mark.parametrize("verb", ["export", "push"])
def test_a_damaged_run_is_not_published(world: Path, verb: str) -> None:
    flip(world / "adapter" / "adapter_model.safetensors")
    target = (world / "out",) if verb == "export" else ("someone/name", "--dry-run", "--merge")
    called = call(verb, world / "adapter", *target)
    assert called.status == 1
    assert "adapter_model.safetensors has SHA-256" in called.err


@pytest.mark.parametrize("verb", ["export", "push"])
def test_weights_that_are_nan_are_not_published(world: Path, verb: str) -> None:
    run = world / "whole"
    weights = load_file(run / "model.safetensors")
    weights["model.norm.weight"][0] = torch.nan
    save_file(weights, run / "model.safetensors", metadata={"format": "pt"})
    seal_run(run)
    target = (world / "out",) if verb == "export" else ("someone/name", "--dry-run")
    called = call(verb, run, *target)
    assert called.status == 1
    assert "model.norm.weight contains NaN" in called.err
    assert not (world / "out").exists()


@pytest.mark.parametrize("verb", ["eval", "export --merge", "train --resume"])
def test_an_adapter_whose_base_has_changed_is_refused(world: Path, own_base: Path, verb: str) -> None:
    flip(own_base)
    run = world / "adapter"
    calls: dict[str, tuple[Any, ...]] = {
        "eval": ("eval", run, "--bench", world / "bench"),
        "export --merge": ("export", run, world / "out", "--merge"),
        "train --resume": ("train", own_base.parents[1] / "adapter.yaml", "--resume"),
    }
    called = call(*calls[verb])
    assert called.status == 1
    assert "was trained on other weights of" in called.err.replace("\n  ", " ")
    assert not (world / "out").exists()


def _without(file: Path, kept: Callable[[str], bool]) -> None:
    save_file({key: one for key, one in load_file(file).items() if kept(key)}, file, metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (
            lambda f: _without(f / "model.safetensors", lambda key: "layers.1.mlp" not in key),
            "3 missing .*layers.1.mlp",
        ),
        (lambda f: edit(f / "config.json", num_hidden_layers=3), "missing .*layers.2"),
        (lambda f: edit(f / "config.json", num_hidden_layers=1), "unexpected .*layers.1"),
        (lambda f: edit(f / "config.json", intermediate_size=64), "6 of another shape .*mlp"),
    ],
    ids=["tensors removed", "a layer more", "a layer fewer", "another width"],
)
def test_weights_that_do_not_fit_the_architecture_are_named(
    tmp_path: Path, harm: Callable[[Path], Any], said: str
) -> None:
    folder = save_tiny_model(tmp_path / "model")
    harm(folder)
    with pytest.raises(UserError, match=said):
        load_model(str(folder))


@pytest.mark.parametrize(
    "named", ["../other/model.safetensors", "/etc/model.safetensors", "pytorch_model.bin", "model.pt", ""]
)
def test_an_index_names_only_safetensors_of_its_folder(tmp_path: Path, named: str) -> None:
    folder = save_tiny_model(tmp_path / "model")
    save_tiny_model(tmp_path / "other")
    keys = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict.fromkeys(keys, named)}))
    with pytest.raises(UserError, match="expected names of safetensors files in the same folder"):
        load_model(str(folder))


def test_a_pickled_adapter_is_refused_even_beside_other_safetensors(tmp_path: Path) -> None:
    base = save_tiny_model(tmp_path / "model")
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}))
    (folder / "adapter_model.bin").write_bytes(b"a pickle")
    (folder / "model.safetensors").write_bytes((base / "model.safetensors").read_bytes())
    with pytest.raises(UserError, match="weights as a pickle"):
        check_model_files(folder)


@pytest.mark.parametrize("length", [1, 2])
def test_adapters_do_not_name_each_other(tmp_path: Path, length: int) -> None:
    folders = [tmp_path / str(number) for number in range(length)]
    for folder, base in zip(folders, [*folders[1:], folders[0]], strict=True):
        folder.mkdir()
        (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}))
    with pytest.raises(UserError, match="leads back to the adapter"):
        load_model(str(folders[0]))
