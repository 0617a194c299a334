"""A model is known by its content and not by its name."""

from __future__ import annotations

import json
from pathlib import Path

from d2e_sft.model.storage.folder import model_identity


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
