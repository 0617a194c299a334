"""Model folders are whole or refused, models of the Hub come from its cache, and weights have an identity."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from d2e_sft.config.recipe import recipe_of
from d2e_sft.model.loading import load_config, load_model, load_tokenizer
from d2e_sft.model.storage import hub
from d2e_sft.model.storage.folder import BUILTIN, model_identity
from d2e_sft.model.storage.hub import find_model
from d2e_sft.util.errors import UserError
from tests.command import call, output_of
from tests.factories import ScriptedServer, make_world, seal_run, write_recipe
from tests.servers import free_port
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
        "train --resume": ("train", own_base.parents[1] / "adapter.yaml", "--resume", "train.max_steps=99"),
    }
    called = call(*calls[verb])
    assert called.status == 1
    assert "was trained on other weights of" in called.err.replace("\n  ", " ")
    assert not (world / "out").exists()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Sets the address of the Hub, which this process has not asked yet, and an empty cache."""

    def at(address: str) -> None:
        monkeypatch.setattr(hub, "_SILENT", {})
        monkeypatch.setenv("HF_HUB_OFFLINE", "0")
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))

    return at


def test_a_broken_gateway_is_asked_once_and_the_remedy_avoids_the_hub(
    asked: Callable[[str], None],
) -> None:
    with ScriptedServer(lambda path, request: (503, {})) as server:
        asked(server.url)
        for name in ("me/first", "me/second"):
            with pytest.raises(
                UserError, match=f"{name}': no such folder; as .*{server.url} does not answer .HTTP 503"
            ) as refused:
                load_config(name)
            assert all(way in str(refused.value) for way in ("HF_HUB_OFFLINE=1", "HF_ENDPOINT", BUILTIN))
        assert len(server.requests) == 1


def test_a_mistyped_folder_is_named_before_the_hub(
    asked: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked(f"http://127.0.0.1:{free_port()}")
    monkeypatch.chdir(tmp_path)
    for there, mistyped in (("my-model", "my-modell"), ("exports/mine", "exports/mien"), ("runs/mine", "runs/mien")):
        (tmp_path / there).mkdir(parents=True)
        with pytest.raises(UserError, match=f"'{mistyped}': no such folder. Did you mean '{Path(there).name}'"):
            find_model(mistyped)


def test_without_a_network_the_cache_is_read_and_the_processes_that_are_started_do_not_ask(
    asked: Callable[[str], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked(f"http://127.0.0.1:{free_port()}")
    kept = tmp_path / "cache/models--me--tiny"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs/main").write_text("0123456789abcdef0123456789abcdef01234567", encoding="utf-8")
    save_tiny_model(kept / "snapshots/0123456789abcdef0123456789abcdef01234567")
    assert find_model("me/tiny") == "me/tiny"
    assert load_tokenizer("me/tiny")[1] is False
    assert capsys.readouterr().err.count("does not answer") == 1
    assert os.environ["HF_HUB_OFFLINE"] == "1"


def save(folder: Path, weights: bytes, **others: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "config.json").write_text("{}")
    for name, text in others.items():
        (folder / name).write_text(text)
    return str(folder)


def test_the_same_content_is_the_same_model_under_any_name(tmp_path: Path) -> None:
    one = model_identity(save(tmp_path / "one", b"w"))
    assert one.startswith("sha256:")
    assert model_identity(save(tmp_path / "two", b"w")) == one
    assert model_identity(save(tmp_path / "one", b"trained anew")) != one
    (tmp_path / "two" / "spiece.model").write_bytes(b"another tokenizer")
    assert model_identity(str(tmp_path / "two")) != one


def test_what_decoding_does_not_depend_on_makes_no_difference(tmp_path: Path) -> None:
    one = model_identity(save(tmp_path / "one", b"w"))
    others = {"training_args.bin": "x", "trainer_state.json": "{}", "README.md": "about"}
    assert model_identity(save(tmp_path / "two", b"w", **others)) == one
    assert model_identity(save(tmp_path / "three", b"w", **{"tokenizer.json": "{}"})) != one


def test_an_adapter_is_another_model_on_another_base(tmp_path: Path) -> None:
    identities = set()
    for weights in (b"one base", b"another"):
        base = save(tmp_path / weights.decode(), weights)
        (tmp_path / "adapter").mkdir(exist_ok=True)
        (tmp_path / "adapter" / "adapter_model.safetensors").write_bytes(b"a")
        (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
        identities.add(model_identity(str(tmp_path / "adapter")))
    # The configuration names the base, too; its content tells even where the name stays.
    save(tmp_path / "another", b"trained anew")
    assert len(identities | {model_identity(str(tmp_path / "adapter"))}) == 3
