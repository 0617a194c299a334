"""FSDP2: two processes under `accelerate launch` train as one process does, with all weights or an adapter."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from d2e_sft.model.loading import load_model
from tests.d2e_sft.distributed.trainings import (
    LORA,
    LOSS_RTOL,
    TERMS,
    WEIGHT_ATOL,
    Trained,
    assert_trained_alike,
    logs,
    one_process,
    others,
    two_processes,
)

UNDER_FSDP2 = ("original-gradient", "prefer-orpo", "tied")


@pytest.fixture(scope="module")
def fsdp2(world: Path) -> dict[str, Trained]:
    """With a checkpoint of the first after step 3, from which the second continues."""
    trainings = {
        "fsdp2": ["train.save_steps=3"],
        "fsdp2-resumed": ["train.save_steps=3", f"--resume={world / 'fsdp2' / 'checkpoint-3'}"],
        **{f"fsdp2-{name}": others(world, name) for name in UNDER_FSDP2},
        "fsdp2-lora": [*LORA, "train.save_steps=3"],
        "fsdp2-lora-resumed": [*LORA, "train.save_steps=3", f"--resume={world / 'fsdp2-lora' / 'checkpoint-3'}"],
        "fsdp2-bfloat16": ["train.bf16=true"],
        "fsdp2-lora-bfloat16": [*LORA, "train.bf16=true"],
    }
    return two_processes(world, "fsdp2", trainings)


def test_fsdp2_trains_as_one_process_and_parts_every_parameter(one: Path, fsdp2: dict[str, Trained]) -> None:
    run, records = fsdp2["fsdp2"]
    first, second = (record["parameters"] for record in records)
    assert len(first) == len(load_file(one / "model.safetensors"))
    for record in records:
        assert record["distributed_type"] == "FSDP"
        assert record["engine"].startswith("FSDP")
    for name, p in first.items():
        assert p["share"] < p["whole"], name
        assert p["share"] + second[name]["share"] == p["whole"], name
    assert_trained_alike(records, run, one)


@pytest.mark.parametrize("kept", ["", "checkpoint-6"])
def test_a_model_saved_under_fsdp2_is_whole_and_loads(one: Path, fsdp2: dict[str, Trained], kept: str) -> None:
    loaded = dict(load_model(str(fsdp2["fsdp2"][0] / kept)).model.named_parameters())
    for name, parameter in load_model(str(one)).model.named_parameters():
        torch.testing.assert_close(loaded[name], parameter, rtol=0, atol=WEIGHT_ATOL)


def test_resuming_under_fsdp2_ends_as_the_whole_training(one: Path, fsdp2: dict[str, Trained]) -> None:
    run, records = fsdp2["fsdp2-resumed"]
    assert_trained_alike(records, run, one)


@pytest.mark.parametrize("objective", UNDER_FSDP2)
def test_other_steps_train_under_fsdp2_as_on_one_process(
    world: Path, fsdp2: dict[str, Trained], objective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("D2E_CACHE", str(world / "cache-of-one"))
    alone = one_process(world, world / f"{objective}-beside-fsdp2", *others(world, objective))
    run, records = fsdp2[f"fsdp2-{objective}"]
    assert_trained_alike(records, run, alone, TERMS[objective])
    load_model(str(run))


def test_a_tied_head_is_stored_once_and_transformers_loads_it(fsdp2: dict[str, Trained]) -> None:
    run, _ = fsdp2["fsdp2-tied"]
    assert "lm_head.weight" not in load_file(run / "model.safetensors")
    model, told = AutoModelForCausalLM.from_pretrained(run, output_loading_info=True)
    assert not any(told.values())
    assert model.lm_head.weight is model.model.embed_tokens.weight


@pytest.mark.parametrize("name", ["fsdp2-lora", "fsdp2-lora-resumed"])
def test_an_adapter_trains_under_fsdp2_as_on_one_process(world: Path, fsdp2: dict[str, Trained], name: str) -> None:
    alone = one_process(world, world / f"{name}-alone", *LORA)
    run, records = fsdp2[name]
    assert_trained_alike(records, run, alone)
    assert not (run / "model.safetensors").exists()
    load_model(str(run))


@pytest.mark.parametrize("kind", ["", "-lora"])
def test_bfloat16_under_fsdp2_differs_only_by_rounding(world: Path, fsdp2: dict[str, Trained], kind: str) -> None:
    alone = one_process(world, world / f"alone{kind}-bfloat16", *(LORA if kind else ()), "train.bf16=true")
    run, records = fsdp2[f"fsdp2{kind}-bfloat16"]
    for record in records:
        # Seen: 5e-4. FSDP2 casts all weights, autocast those of products.
        losses = [[entry["loss"] for entry in entries] for entries in (record["logs"], logs(alone))]
        assert losses[0] == pytest.approx(losses[1], rel=2e-3)
        whole = fsdp2[f"fsdp2{kind}"][1][0]["logs"][0]["loss"]
        assert losses[0][0] != pytest.approx(whole, rel=LOSS_RTOL), "it was computed in float32"
    (file,) = alone.glob("*model.safetensors")
    found, expected = load_file(run / file.name), load_file(file)
    assert {name: (t.shape, t.dtype) for name, t in found.items()} == {
        name: (t.shape, t.dtype) for name, t in expected.items()
    }
    load_model(str(run))
