"""What is refused of models and their folders: each call and its message in `test_messages.yaml`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from d2e_sft.model.layers import compile_layers
from d2e_sft.model.loading import load_model
from d2e_sft.model.storage.folder import resolve_name
from d2e_sft.model.storage.hub import find_model
from tests.messages import Call, messages_of
from tests.tiny import save_tiny_model

WEIGHTS, INDEX, ADAPTER = "model.safetensors", "model.safetensors.index.json", "adapter_config.json"


def harmed(harm: Callable[[Path], Any]) -> Call:
    """Load a tiny model after its folder was harmed."""

    def call(tmp: Path) -> Any:
        folder = save_tiny_model(tmp / "model")
        harm(folder)
        return load_model(str(folder))

    return call


def edited(**changes: Any) -> Call:
    """Load a model whose configuration was edited."""
    return harmed(lambda folder: edit(folder / "config.json", **changes))


def edit(file: Path, **changes: Any) -> None:
    content = json.loads(file.read_text()) if file.is_file() else {}
    file.write_text(json.dumps({**content, **changes}))


def without_a_layer(folder: Path) -> None:
    kept = {key: one for key, one in load_file(folder / WEIGHTS).items() if "layers.1.mlp" not in key}
    save_file(kept, folder / WEIGHTS, {"format": "pt"})


def spoiled(value: float) -> Call:
    """Load a model with one weight of this value."""

    def harm(folder: Path) -> None:
        weights = load_file(folder / WEIGHTS)
        weights["model.layers.1.mlp.up_proj.weight"][3, 2] = value
        save_file(weights, folder / WEIGHTS, {"format": "pt"})

    return harmed(harm)


def all_of_unicode(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "CanineTokenizer"}')


def indexed(name: str) -> Call:
    """Load a model whose index says that its weights are in this file."""

    def harm(folder: Path) -> None:
        keys = load_file(folder / WEIGHTS)
        (folder / WEIGHTS).rename(folder.parent / WEIGHTS)
        edit(folder / INDEX, weight_map=dict.fromkeys(keys, name))

    return harmed(harm)


def adapters(*bases: str, **options: Any) -> Call:
    """Load the first of adapters that name these bases."""

    def call(tmp: Path) -> Any:
        for number, base in enumerate(bases):
            (tmp / str(number)).mkdir()
            edit(tmp / str(number) / ADAPTER, base_model_name_or_path=base.replace("TMP", str(tmp)))
        return load_model(str(tmp / "0"), **options)

    return call


def pickled_adapter(folder: Path) -> None:
    edit(folder / ADAPTER, base_model_name_or_path="x")
    (folder / "adapter_model.bin").write_bytes(b"a pickle, beside safetensors that are not the adapter's")


def unfinished(tmp: Path) -> Any:
    (tmp / "checkpoint-4").mkdir()
    edit(tmp / "checkpoint-4" / "config.json")
    return resolve_name(str(tmp))


test_message = messages_of(
    __file__,
    {
        "tensors removed": harmed(without_a_layer),
        "a layer more": edited(num_hidden_layers=3),
        "a layer fewer": edited(num_hidden_layers=1),
        "another width": edited(intermediate_size=64),
        **{f"a weight is {value}": spoiled(value) for value in (torch.nan, torch.inf, -torch.inf)},
        "a tokenizer with more tokens": harmed(all_of_unicode),
        **{
            f"an index names {name!r}": indexed(name)
            for name in ("../model.safetensors", "/etc/model.safetensors", "pytorch_model.bin", "model.pt", "")
        },
        "an adapter that names itself": adapters("TMP/0"),
        "adapters that name each other": adapters("TMP/1", "TMP/0"),
        "an adapter with random weights": adapters("x", seed=1),
        "a pickled adapter": harmed(pickled_adapter),
        "a run that has not finished": unfinished,
        "a recipe for a model": lambda tmp: find_model("smollm2-135m-mini/d2e"),
        "no layers to compile": lambda tmp: compile_layers(torch.nn.Linear(2, 2)),
    },
)
